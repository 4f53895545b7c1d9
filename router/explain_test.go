package router

import (
	"fmt"
	"net/url"
	"strings"
	"testing"

	"github.com/kvcluster/kvcluster/indexer"
	"github.com/kvcluster/kvcluster/indexer/blockhash"
)

// stopsOf returns "count@block reason" of every stop of an explanation.
func stopsOf(t *testing.T, a answer) (out []string) {
	t.Helper()
	if a.status != 200 {
		t.Fatalf("%d %s", a.status, a.body)
	}
	for _, s := range decode(t, a.body).(map[string]any)["stops"].([]any) {
		m := s.(map[string]any)
		out = append(out, fmt.Sprintf("%s@%s %s", m["count"], text(m["block"]), m["reason"]))
	}
	return out
}

func TestExplain(t *testing.T) {
	f := setup(t, Config{})
	f.register("1", 0)
	f.register("1", 3)
	f.register("2", 0)
	f.mustPost("/register", `{"instance_id":3,"endpoint":"tcp://h:1","model_name":"other","block_size":4}`, 201)
	f.mustPost("/register", `{"instance_id":4,"endpoint":"tcp://h:1","model_name":"m","block_size":4,"lora_name":"sql"}`, 201)
	list, ids, p := tokens(22) // five blocks and two tokens
	all := func(instance string) *StreamStatus { return f.fake.stream(instance, 0) }
	ask := func(fields string) answer {
		return f.post("/explain", `{"model_name":"m","token_ids":[`+list+`],`+fields+`}`)
	}
	check := func(name, fields string, want ...string) {
		t.Helper()
		if got := stopsOf(t, ask(fields)); fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	all("1")
	check("never announced", `"instance_id":1`, "all tiers@0 never_announced")
	f.fake.hold("2", 0, indexer.Device, 0, p...)
	all("2")
	check("whole", `"instance_id":"2"`)
	f.fake.hold("1", 0, indexer.Device, 0, p[:2]...)
	f.fake.hold("1", 0, indexer.Host, 2, p[:3]...)
	f.fake.hold("1", 0, indexer.Device, 3, p[:4]...)
	check("tiers", `"instance_id":1,"dp_rank":0`, "device@2 lower_tier", "all tiers@3 tier_order")
	f.fake.evict("1", 0, p[:4]...)
	check("evicted", `"instance_id":1,"dp_rank":0`, "device@2 lower_tier", "all tiers@3 evicted")
	check("rank without events", `"instance_id":1,"dp_rank":3`, "all tiers@0 no_events")
	check("unknown rank", `"instance_id":1,"dp_rank":9`, "all tiers@0 unknown_rank")
	check("unknown worker", `"instance_id":"x"`, "all tiers@0 unknown_worker")
	check("other group", `"instance_id":3`, "all tiers@0 other_group")
	check("lowest rank by default", `"instance_id":1,"dp_rank":null`, "device@2 lower_tier", "all tiers@3 evicted")
	f.fake.hold("4", 0, indexer.Device, 0, blockhash.AppendTokens(nil, ids, 4, blockhash.NamespaceSeed("sql", ""))...)
	check("other LoRA", `"instance_id":4`, "all tiers@0 other_namespace")
	check("right LoRA", `"instance_id":4,"lora_name":"sql"`)
	check("needless salt", `"instance_id":2,"cache_salt":"s"`, "all tiers@0 other_namespace")

	s := f.fake.stream("1", 3)
	for name, set := range map[string]func(){
		"refused":            func() { s.Refused = true },
		"other_block_size":   func() { s.BlockSizeMismatches, s.SeenBlockSize = 5, 32 },
		"stream_paused":      func() { s.State = StreamPaused },
		"stream_failed":      func() { s.State = StreamFailed },
		"stream_catching_up": func() { s.State = StreamCatchingUp },
		"degraded":           func() { s.Degraded = "lost" },
		"orphaned":           func() { s.Orphans = 3 },
	} {
		*s = StreamStatus{Instance: "1", Rank: 3, State: StreamActive}
		set()
		check(name, `"instance_id":1,"dp_rank":3`, "all tiers@0 "+name)
	}
	m := decode(t, ask(`"instance_id":1,"dp_rank":0`).body).(map[string]any)
	if text(m["gpu"]) != "8" || text(m["cpu"]) != "12" || text(m["disk"]) != "12" || text(m["blocks"]) != "5" || text(m["tokens"]) != "22" {
		t.Errorf("numbers: %v", m)
	}
	path := m["path"].([]any)
	if b := path[2].(map[string]any); fmt.Sprint(b["tiers"]) != "[host_pinned]" || b["known"] != true || text(b["tokens_hash"]) != fmt.Sprint(p[2]) {
		t.Errorf("block 2: %v", b)
	}
	if b := path[3].(map[string]any); len(b["tiers"].([]any)) != 0 || b["evicted"] != true {
		t.Errorf("block 3: %v", b)
	}
	// A score and its explanation agree.
	scores := decode(t, f.post("/query", `{"model_name":"m","token_ids":[`+list+`]}`).body).(map[string]any)["instances"].(map[string]any)["1"].(map[string]any)
	for _, k := range []string{"gpu", "cpu", "disk"} {
		if text(scores[k]) != text(m[k]) {
			t.Errorf("%s: scored %v, explained %v", k, scores[k], m[k])
		}
	}
}

func TestExplainForms(t *testing.T) {
	f := setup(t, Config{})
	f.register("1", 0)
	list, _, p := tokens(9)
	f.fake.hold("1", 0, indexer.Device, 0, p[:1]...)
	f.fake.stream("1", 0)
	seq := blockhash.AppendSequence(nil, p)
	for name, query := range map[string]string{
		"tokens": "token_ids=" + list, "local": fmt.Sprintf("block_hashes=%d,%d", p[0], p[1]), "sequence": fmt.Sprintf("seq_hashes=%d,%d", seq[0], seq[1]),
	} {
		a := f.get("/explain?model_name=m&instance_id=1&dp_rank=0&" + query)
		if got := stopsOf(t, a); fmt.Sprint(got) != "[all tiers@1 never_announced]" {
			t.Errorf("%s: %q", name, got)
		}
	}
	a := f.get("/explain?format=text&model_name=m&instance_id=1&token_ids=" + list)
	for _, part := range []string{"instance 1 rank 0", "9 tokens (1 in an incomplete block", "4 tokens on the device", "0-3", "not held by anyone", "never_announced"} {
		if !strings.Contains(a.body, part) {
			t.Errorf("text lacks %q:\n%s", part, a.body)
		}
	}
	if b := f.do("GET", "/explain?model_name=m&instance_id=1&token_ids="+list, "", "", "Accept", "text/plain").body; b != a.body {
		t.Errorf("Accept: %s", b)
	}
	for query, want := range map[string]struct {
		status int
		part   string
	}{
		"instance_id=1&token_ids=1":                                            {422, "model_name"},
		"model_name=m&token_ids=1":                                             {422, "instance_id"},
		"model_name=m&instance_id=1":                                           {422, "token_ids"},
		"model_name=x&instance_id=1&token_ids=1":                               {404, "no indexer for model=x"},
		"model_name=m&instance_id=1&token_ids=1,x":                             {400, "token_ids"},
		"model_name=m&instance_id=1&token_ids=1&dp_rank=-1":                    {400, "dp_rank"},
		"model_name=m&instance_id=1&token_ids=1&block_hashes=1":                {400, "not both"},
		"model_name=m&instance_id=1&block_hashes=1&seq_hashes=1":               {400, "one of them"},
		"model_name=" + url.QueryEscape("\xff") + "&instance_id=1&token_ids=1": {404, "no indexer"},
	} {
		if a := f.get("/explain?" + query); a.status != want.status || !strings.Contains(a.body, want.part) {
			t.Errorf("%s: %d %s, want %d with %q", query, a.status, a.body, want.status, want.part)
		}
	}
	if got := stopsOf(t, f.get("/explain?model_name=m&instance_id=1&token_ids=1,2,3")); fmt.Sprint(got) != "[all tiers@0 prompt_too_short]" {
		t.Errorf("short: %q", got)
	}
}
