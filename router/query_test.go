package router

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/kvcluster/kvcluster/indexer"
	"github.com/kvcluster/kvcluster/indexer/blockhash"
	"github.com/kvcluster/kvcluster/shard/catalog"
)

// tokens returns n tokens and the local hashes of their blocks of 4.
func tokens(n int) (list string, ids []uint32, locals []uint64) {
	for i := range n {
		ids = append(ids, uint32(i*7+3))
	}
	list = strings.Trim(strings.ReplaceAll(fmt.Sprint(ids), " ", ","), "[]")
	return list, ids, blockhash.AppendTokens(nil, ids, 4, blockhash.Seed)
}

func TestQueryTokens(t *testing.T) {
	f := setup(t, Config{})
	for _, id := range []string{"1", "2", "10", "name"} {
		f.register(id, 0)
	}
	list, _, locals := tokens(18)
	f.fake.hold("1", 0, indexer.Device, 0, locals...)
	f.fake.hold("10", 0, indexer.Device, 0, locals[:2]...)
	f.fake.hold("10", 0, indexer.Device, 3, locals...) // behind a hole
	f.fake.hold("2", 0, indexer.External, 0, locals[:3]...)
	f.fake.hold("name", 0, indexer.Device, 0, 999) // another prompt
	a := f.post("/query", `{"token_ids":[`+list+`],"model_name":"m","routing_group":"default","tenant_id":"ignored"}`)
	a.want(t, 200, `{"scores":{"1":{"0":16},"10":{"0":8}},"frequencies":[],"instances":{
	  "1":{"longest_matched":16,"gpu":16,"dp":{"0":16},"cpu":16,"disk":16},
	  "10":{"longest_matched":8,"gpu":8,"dp":{"0":8},"cpu":8,"disk":8},
	  "2":{"longest_matched":12,"gpu":0,"dp":{"0":0},"cpu":0,"disk":12}}}`)
	if i, j := strings.Index(a.body, `"1":{`), strings.Index(a.body, `"10":{`); i > j {
		t.Errorf("not in order: %s", a.body)
	}
	empty := `{"scores":{},"frequencies":[],"instances":{}}`
	f.post("/query", `{"token_ids":[1,2,3],"model_name":"m"}`).want(t, 200, empty)
	f.post("/query", `{"token_ids":[],"model_name":"m"}`).want(t, 200, empty)
	f.post("/query", `{"token_ids":[9,9,9,9,9],"model_name":"m"}`).want(t, 200, empty)
	f.post("/query_by_hash", `{"block_hashes":[],"model_name":"m"}`).want(t, 200, empty)
	f.post("/query", `{"token_ids":[1],"model_name":"m","routing_group":"x"}`).want(t, 404, `{"error":"no indexer for model=m routing_group=x"}`)
	f.post("/query_by_hash", `{"block_hashes":[1],"model_name":"q:\"/"}`).want(t, 404, `{"error":"no indexer for model=q:\"/ routing_group=default"}`)
}

func TestQueryByHashValues(t *testing.T) {
	f := setup(t, Config{})
	f.register("1", 0)
	f.fake.hold("1", 0, indexer.Device, 0, 9143094415614847814, 12124091508212882195)
	want := `{"scores":{"1":{"0":8}},"frequencies":[],"instances":{"1":{"longest_matched":8,"gpu":8,"dp":{"0":8},"cpu":8,"disk":8}}}`
	f.post("/query_by_hash", `{"block_hashes":[9143094415614847814,-6322652565496669421],"model_name":"m"}`).want(t, 200, want)
	f.post("/query_by_hash", `{"block_hashes":[9143094415614847814,12124091508212882195],"model_name":"m"}`).want(t, 200, want)
	f.post("/query_by_hash", `{"seq_hashes":[9143094415614847814,9510318385840434533],"model_name":"m"}`).want(t, 200, want)
	// The salt is refused before the group is looked for.
	const refused = `{"error":"cache_salt is not accepted by /query_by_hash; block_hashes must already include the intended cache salt"}`
	f.post("/query_by_hash", `{"block_hashes":[1],"model_name":"none","cache_salt":""}`).want(t, 400, refused)
	f.post("/query_by_hash", `{"block_hashes":[1],"model_name":"m","cache_salt":"s"}`).want(t, 400, refused)
	for body, status := range map[string]int{
		`{"block_hashes":[1],"model_name":"m","cache_salt":null}`:                       200,
		`{"block_hashes":[18446744073709551615,-9223372036854775808],"model_name":"m"}`: 200,
		`{"block_hashes":[18446744073709551616],"model_name":"m"}`:                      422,
		`{"block_hashes":[-9223372036854775809],"model_name":"m"}`:                      422,
		`{"block_hashes":[1.5],"model_name":"m"}`:                                       422,
		`{"block_hashes":["1"],"model_name":"m"}`:                                       422,
		`{"block_hashes":null,"model_name":"m"}`:                                        422,
		`{"model_name":"m"}`:                                                            422,
		`{"block_hashes":[1]}`:                                                          422,
		`{"block_hashes":[1],"seq_hashes":[1],"model_name":"m"}`:                        400,
		`{"block_hash":[1],"seq_hashes":[2],"model_name":"m"}`:                          400,
		`{"block_hash":[1],"seq_hashes":[1],"model_name":"m"}`:                          200,
	} {
		if a := f.post("/query_by_hash", body); a.status != status {
			t.Errorf("%s: %d %s, want %d", body, a.status, a.body, status)
		}
	}
}

// Where engines send EAGLE pages a slot's chain is of one kind or the other; the larger
// depth counts for each slot.
func TestQueryBigram(t *testing.T) {
	f := setup(t, Config{})
	f.register("1", 0)
	f.register("2", 0)
	list, ids, plain := tokens(13)
	pages := blockhash.Content{Tokens: ids, BlockSize: 4, Window: 5}.AppendLocals(nil, blockhash.Seed)
	f.fake.hold("1", 0, indexer.Device, 0, plain[:2]...)
	f.fake.hold("2", 0, indexer.Device, 0, pages...)
	g, _ := f.fake.rank("1", 0)
	query := `{"token_ids":[` + list + `],"model_name":"m"}`
	f.post("/query", query).want(t, 200, `{"scores":{"1":{"0":8}},"frequencies":[],"instances":{"1":{"longest_matched":8,"gpu":8,"dp":{"0":8},"cpu":8,"disk":8}}}`)
	f.fake.bigram[g.ID] = true
	f.post("/query", query).want(t, 200, `{"scores":{"1":{"0":8},"2":{"0":12}},"frequencies":[],"instances":{
	  "1":{"longest_matched":8,"gpu":8,"dp":{"0":8},"cpu":8,"disk":8},"2":{"longest_matched":12,"gpu":12,"dp":{"0":12},"cpu":12,"disk":12}}}`)
}

// A slot that changes hands while a query runs is credited to nobody: neither to the one
// who had it nor to the one who gets it.
func TestSlotChangesHands(t *testing.T) {
	empty := `{"scores":{},"frequencies":[],"instances":{}}`
	for _, purged := range []bool{false, true} {
		f := setup(t, Config{})
		f.register("keep", 0)
		f.register("old", 0)
		_, slot := f.fake.rank("old", 0)
		f.fake.hold("old", 0, indexer.Device, 0, 1, 2)
		f.fake.onMatch = func(f *fakeCluster) {
			f.onMatch = nil
			f.index++
			retired, err := f.catalog.Unregister(f.index, catalog.Unregistration{Instance: "old", Model: "m"})
			if err != nil {
				t.Fatal(err)
			}
			if !purged { // the blocks are still seen, the slot belongs to nobody
				return
			}
			f.purge(retired[0])
			f.index++
			if err := f.catalog.Register(f.index, catalog.Registration{Instance: "new", Group: catalog.GroupKey{Model: "m", RoutingGroup: "default"}, BlockSize: 4, Endpoint: "tcp://h:1"}); err != nil {
				t.Fatal(err)
			}
			g, again := f.rank("new", 0)
			if again != slot {
				t.Fatalf("slot %d was not reused: %d", slot, again)
			}
			f.holdSlot(g.ID, again, indexer.Device, 0, []uint64{1, 2})
		}
		f.post("/query_by_hash", `{"block_hashes":[1,2],"model_name":"m"}`).want(t, 200, empty)
		if purged { // the next query knows the new holder
			f.post("/query_by_hash", `{"block_hashes":[1,2],"model_name":"m"}`).want(t, 200,
				`{"scores":{"new":{"0":8}},"frequencies":[],"instances":{"new":{"longest_matched":8,"gpu":8,"dp":{"0":8},"cpu":8,"disk":8}}}`)
		}
	}
}

func TestIncompleteAnswers(t *testing.T) {
	f := setup(t, Config{})
	f.register("1", 0)
	f.fake.hold("1", 0, indexer.Device, 0, 1)
	f.fake.lacks = Completeness{Partial: true, Missing: []string{"partition 5"}, Stale: true}
	a := f.post("/query_by_hash", `{"block_hashes":[1],"model_name":"m"}`)
	a.want(t, 200, `{"scores":{"1":{"0":4}},"frequencies":[],"instances":{"1":{"longest_matched":4,"gpu":4,"dp":{"0":4},"cpu":4,"disk":4}},"partial":true,"missing":["partition 5"],"stale":true}`)
	if a.header.Get("X-Kvcluster-Partial") != "partition 5" || a.header.Get("X-Kvcluster-Stale") != "true" {
		t.Errorf("headers: %v", a.header)
	}
	f.post("/query_by_hash", `{"block_hashes":[1],"model":"m","block_size":4}`).want(t, 200,
		`{"default":{"1":{"longest_matched":4,"GPU":4,"DP":{"0":4},"CPU":0,"DISK":0,"partial":true,"missing":["partition 5"],"stale":true}}}`)
}

// Every query route in every dialect says what is missing and how old the map may be, also
// when nobody holds anything.
func TestIncompleteInEveryDialect(t *testing.T) {
	f := setup(t, Config{})
	f.register("1", 0)
	f.fake.hold("1", 0, indexer.Device, 0, 1)
	f.fake.lacks = Completeness{Partial: true, Missing: []string{"partition 5: b: no answer", "x"}, Stale: true, MapAge: 7200 * time.Millisecond}
	const fields = `"partial":true,"missing":["partition 5: b: no answer","x"],"stale":true,"map_age_ms":7200`
	for name, c := range map[string]struct{ path, body, want string }{
		"tokens, nobody": {"/query", `{"token_ids":[1,2,3,4],"model_name":"m"}`, `{"scores":{},"frequencies":[],"instances":{},` + fields + `}`},
		"sequence":       {"/query_by_hash", `{"seq_hashes":[1],"model_name":"m"}`, `{"scores":{"1":{"0":4}},"frequencies":[],"instances":{"1":{"longest_matched":4,"gpu":4,"dp":{"0":4},"cpu":4,"disk":4}},` + fields + `}`},
		"first draft":    {"/query", `{"token_ids":[1,2,3,4],"model":"m"}`, `{"data":{},` + fields + `}`},
		"current":        {"/query_by_hash", `{"block_hash":[1],"model":"m","block_size":4}`, `{"default":{"1":{"longest_matched":4,"GPU":4,"DP":{"0":4},"CPU":0,"DISK":0,` + fields + `}}}`},
	} {
		a := f.post(c.path, c.body)
		a.want(t, 200, c.want)
		if p, s := a.header.Get("X-Kvcluster-Partial"), a.header.Get("X-Kvcluster-Stale"); p != "partition 5: b: no answer, x" || s != "true; map_age_ms=7200" {
			t.Errorf("%s: headers %q %q", name, p, s)
		}
	}
	for _, q := range []string{`/explain`} {
		a := f.post(q, `{"block_hashes":[1],"model_name":"m","instance_id":1}`)
		if !strings.Contains(a.body, fields) || a.header.Get("X-Kvcluster-Partial") == "" {
			t.Errorf("%s: %s", q, a.body)
		}
		text := f.do("POST", q+"?format=text", "application/json", `{"block_hashes":[1],"model_name":"m","instance_id":1}`)
		if !strings.Contains(text.body, "partition 5: b: no answer, x") || !strings.Contains(text.body, "may be 7.2s old") {
			t.Errorf("%s: %s", q, text.body)
		}
	}
	// A missing part with a line break in its name must not break the header.
	f.fake.lacks = Completeness{Partial: true, Missing: []string{"instance a\r\nb"}}
	if h := f.post("/query", `{"token_ids":[1,2,3,4],"model_name":"m"}`).header.Get("X-Kvcluster-Partial"); strings.ContainsAny(h, "\r\n") || h == "" {
		t.Errorf("header %q", h)
	}
	f.fake.lacks.Missing = []string{strings.Repeat("ä very long name ", 1000)}
	if h := f.post("/query", `{"token_ids":[1,2,3,4],"model_name":"m"}`).header.Get("X-Kvcluster-Partial"); len(h) != 1024 || !strings.HasPrefix(h, "? very") {
		t.Errorf("header %q", h)
	}
	body := f.get("/metrics").body
	for completeness, want := range map[string]string{"complete": "0", "partial": "2", "stale": "0", "partial_stale": "6", "refused": "0"} {
		if got := series(body, `kvcluster_answers_total{completeness="`+completeness+`"}`); got != want {
			t.Errorf("%s: %q, want %s", completeness, got, want)
		}
	}
}

// With stale answers refused a query is a 503 that says why, in every dialect.
func TestRefusedAnswers(t *testing.T) {
	f := setup(t, Config{})
	f.register("1", 0)
	f.fake.lacks = Completeness{Stale: true}
	f.fake.refuse = fmt.Errorf("%w: node c cannot prove that its map is current; it may be 7.2s old", ErrUnavailable)
	const text = `unavailable: node c cannot prove that its map is current; it may be 7.2s old`
	for path, body := range map[string]string{
		"/query":         `{"token_ids":[1,2,3,4],"model_name":"m"}`,
		"/query_by_hash": `{"seq_hashes":[1],"model_name":"m"}`,
		"/explain":       `{"block_hashes":[1],"model_name":"m","instance_id":1}`,
	} {
		a := f.post(path, body)
		a.want(t, 503, `{"error":"`+text+`"}`)
		if a.header.Get("Retry-After") != "1" {
			t.Errorf("%s: %v", path, a.header)
		}
	}
	for _, body := range []string{`{"token_ids":[1,2,3,4],"model":"m"}`, `{"token_ids":[1,2,3,4],"model":"m","block_size":4}`} {
		f.post("/query", body).want(t, 503, `{"error":"`+text+`","reason":"`+text+`"}`)
	}
	if got := series(f.get("/metrics").body, `kvcluster_answers_total{completeness="refused"}`); got != "5" {
		t.Errorf("%s refused", got)
	}
}

// A slot is read by the map of the answer: a life that began after it gets nothing, however
// new the router's own view is.
func TestPin(t *testing.T) {
	f := setup(t, Config{})
	f.register("1", 0)
	f.fake.onMatch = func(fake *fakeCluster) {
		fake.onMatch = nil
		fake.index++
		err := fake.catalog.Register(fake.index, catalog.Registration{
			Instance: "late", Group: catalog.GroupKey{Model: "m", RoutingGroup: "default"}, BlockSize: 4, Endpoint: "tcp://h:9",
		})
		if err != nil {
			t.Error(err)
		}
		g, slot := fake.rank("late", 0)
		fake.holdSlot(g.ID, slot, indexer.Device, 0, []uint64{1})
	}
	f.post("/query_by_hash", `{"block_hashes":[1],"model_name":"m"}`).want(t, 200, `{"scores":{},"frequencies":[],"instances":{}}`)
	f.post("/query_by_hash", `{"block_hashes":[1],"model_name":"m"}`).want(t, 200,
		`{"scores":{"late":{"0":4}},"frequencies":[],"instances":{"late":{"longest_matched":4,"gpu":4,"dp":{"0":4},"cpu":4,"disk":4}}}`)
}
