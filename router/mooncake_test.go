package router

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/vmihailenco/msgpack/v5"

	"github.com/kvcluster/kvcluster/indexer"
	"github.com/kvcluster/kvcluster/indexer/blockhash"
)

// draftExample is the worked example of the first draft: block size 2, six tokens. H1 is
// on GPU of ranks 0 and 1, CPU and disk; H2 on GPU of rank 0 and CPU; H3 on disk only.
func draftExample(t *testing.T) (f *fixture, tokens string, locals []uint64) {
	f = setup(t, Config{})
	for rank := range 2 {
		f.mustPost("/register", fmt.Sprintf(`{"modelname":"deepseek","type":"vLLM","instance_id":"engine","endpoint":"tcp://h:%d","block_size":2,"dp_rank":%d}`, 5557+rank, rank), 200)
	}
	ids := []uint32{1, 15, 100, 55, 89, 7}
	locals = blockhash.AppendTokens(nil, ids, 2, blockhash.Seed)
	f.fake.hold("engine", 0, indexer.Device, 0, locals[:2]...)
	f.fake.hold("engine", 1, indexer.Device, 0, locals[:1]...)
	f.fake.hold("engine", 0, indexer.Host, 0, locals[:2]...)
	f.fake.hold("engine", 0, indexer.Disk, 0, locals[:1]...)
	f.fake.hold("engine", 0, indexer.Disk, 2, locals...)
	return f, strings.Trim(strings.ReplaceAll(fmt.Sprint(ids), " ", ","), "[]"), locals
}

func TestMooncakeDraft(t *testing.T) {
	f, list, locals := draftExample(t)
	want := `{"data":{"engine":{"longest_matched":6,"GPU":4,"DP":{"0":4,"1":2},"CPU":4,"DISK":4}}}`
	f.post("/query", `{"model":"deepseek","token_ids":[`+list+`]}`).want(t, 200, want)
	f.post("/query", `{"model":"deepseek","lora_id":-1,"token_ids":[`+list+`],"medium":["L1","L2","L3"]}`).want(t, 200, want)
	seq := blockhash.AppendSequence(nil, locals)
	f.post("/query_by_hash", fmt.Sprintf(`{"model":"deepseek","block_hash":[%d,%d,%d]}`, seq[0], seq[1], seq[2])).want(t, 200, want)
	// The same data in Dynamo's way of counting.
	f.post("/query", `{"model_name":"deepseek","token_ids":[`+list+`]}`).want(t, 200,
		`{"scores":{"engine":{"0":4,"1":2}},"frequencies":[],"instances":{"engine":{"longest_matched":6,"gpu":4,"dp":{"0":4,"1":2},"cpu":4,"disk":6}}}`)
	f.post("/query", `{"model":"deepseek","token_ids":[9,9]}`).want(t, 200, `{"data":{}}`)
}

// A prefix held partly by one rank and partly by another is held by none.
func TestMooncakeRanksAreNotJoined(t *testing.T) {
	f := setup(t, Config{})
	f.register("1", 0)
	f.register("1", 1)
	f.fake.hold("1", 0, indexer.Device, 0, 1)
	f.fake.hold("1", 1, indexer.Device, 1, 1, 2)
	f.post("/query_by_hash", `{"model":"m","block_hashes":[1,2]}`).want(t, 200, `{"data":{"1":{"longest_matched":4,"GPU":4,"DP":{"0":4},"CPU":0,"DISK":0}}}`)
}

func TestMooncakeLongPrefix(t *testing.T) {
	f := setup(t, Config{})
	f.register("1", 0)
	path := make([]uint64, 300)
	for i := range path {
		path[i] = uint64(i + 1)
		tier := indexer.Device
		if i%2 == 1 {
			tier = indexer.Host
		}
		f.fake.hold("1", 0, tier, i, path[:i+1]...)
	}
	list := strings.Trim(strings.ReplaceAll(fmt.Sprint(path), " ", ","), "[]")
	f.post("/query_by_hash", `{"model":"m","block_hashes":[`+list+`,7,8]}`).want(t, 200, `{"data":{"1":{"longest_matched":1200,"GPU":600,"DP":{"0":600},"CPU":600,"DISK":0}}}`)
}

func TestMooncakeJSON(t *testing.T) {
	f := setup(t, Config{})
	reg := func(fields string) answer {
		return f.post("/register", `{"endpoint":"tcp://1.1.1.1:5557","replay_endpoint":"tcp://1.1.1.1:5558","modelname":"deepseek","block_size":4,`+fields+`}`)
	}
	reg(`"type":"vLLM","instance_id":"node1","dp_rank":0,"tenant_id":"default","lora_name":""`).want(t, 200, `{"status":"registered successfully","instance_id":"node1"}`)
	reg(`"type":"SGLang","instance_id":"node2","dp_rank":0,"tenant_id":"default","lora_name":"sql","additionalsalt":"w8a8"`).want(t, 200, `{"status":"registered successfully","instance_id":"node2"}`)
	reg(`"type":"Mooncake","instance_id":7,"dp_rank":3,"tenant_id":"acme"`).want(t, 200, `{"status":"registered successfully","instance_id":"7"}`)
	reg(`"type":"vLLM","instance_id":"node1","dp_rank":0`).want(t, 409, `{"error":"instance node1 dp_rank 0 already registered","reason":"instance node1 dp_rank 0 already registered"}`)
	w, _ := f.fake.View().Worker("node2")
	if r := w.Ranks[0].Registration; r.Lora != "sql" || r.Salt != "w8a8" || r.EngineType != "SGLang" || r.Group.RoutingGroup != "default" {
		t.Errorf("registered %+v", r)
	}
	for _, c := range []struct {
		fields string
		status int
		part   string
	}{
		{`"instance_id":"x","dp_rank":0`, 422, "type"},
		{`"type":"vLLM","dp_rank":0`, 422, "instance_id"},
		{`"type":"vLLM","instance_id":"x"`, 422, "dp_rank"},
		{`"type":"Other","instance_id":"x","dp_rank":0`, 400, `"field":"type"`},
		{`"type":5,"instance_id":"x","dp_rank":0`, 422, "type"},
		{`"type":"vLLM","instance_id":"x","dp_rank":0,"block_size":0`, 400, `"field":"block_size"`},
		{`"type":"vLLM","instance_id":"x","dp_rank":0,"cache_group":1`, 400, `"field":"cache_group"`},
		{`"type":"vLLM","instance_id":"x","dp_rank":0,"tenant_id":"a","routing_group":"b"`, 400, "different"},
	} {
		if a := reg(c.fields); a.status != c.status || !strings.Contains(a.body, c.part) {
			t.Errorf("%s: %d %s, want %d with %q", c.fields, a.status, a.body, c.status, c.part)
		}
	}

	list, ids, locals := tokens(12)
	f.fake.hold("node1", 0, indexer.Device, 0, locals[:2]...)
	f.fake.hold("node1", 0, indexer.Host, 0, locals...)
	sql := blockhash.AppendTokens(nil, ids, 4, blockhash.NamespaceSeed("sql", "w8a8"))
	f.fake.hold("node2", 0, indexer.Device, 0, sql...)
	f.fake.hold("7", 3, indexer.Disk, 0, locals[:1]...)
	query := func(fields string) answer {
		return f.post("/query", `{"model":"deepseek","token_ids":[`+list+`],`+fields+`}`)
	}
	node1 := `"node1":{"longest_matched":12,"GPU":8,"DP":{"0":8},"CPU":12,"DISK":0}`
	query(`"block_size":4`).want(t, 200, `{"default":{`+node1+`}}`)
	query(`"block_size":4,"instance_id":"node2"`).want(t, 200, `{"default":{}}`)
	query(`"block_size":4,"instance_id":"node1","tenant_id":"default"`).want(t, 200, `{"default":{`+node1+`}}`)
	query(`"block_size":4,"lora_name":"sql","cache_salt":"w8a8"`).want(t, 200, `{"default":{"node2":{"longest_matched":12,"GPU":12,"DP":{"0":12},"CPU":0,"DISK":0}}}`)
	query(`"block_size":4,"tenant_id":"acme"`).want(t, 200, `{"acme":{"7":{"longest_matched":4,"GPU":0,"DP":{"3":0},"CPU":0,"DISK":4}}}`)
	seq := blockhash.AppendSequence(nil, locals)
	f.post("/query_by_hash", fmt.Sprintf(`{"model":"deepseek","block_size":4,"cache_salt":"any","seq_hashes":[%d,%d,%d,%d]}`, seq[0], seq[1], seq[2], 5)).want(t, 200, `{"default":{`+node1+`}}`)
	for fields, want := range map[string]struct {
		status int
		part   string
	}{
		`"tenant_id":"default"`:                     {422, "missing field `block_size`"},
		`"block_size":0`:                            {400, "block_size must be above 0"},
		`"block_size":8`:                            {400, "existing=4, requested=8"},
		`"block_size":4,"tenant_id":"nobody"`:       {404, "no indexer for model=deepseek tenant_id=nobody"},
		`"block_size":4,"lora_id":3`:                {400, "lora_id"},
		`"block_size":4,"lora_id":3,"lora_name":""`: {400, "exclude each other"},
		`"block_size":"4"`:                          {422, "block_size"},
		`"block_size":4,"modelname":"other"`:        {400, "different"},
	} {
		if a := query(fields); a.status != want.status || !strings.Contains(a.body, want.part) {
			t.Errorf("%s: %d %s, want %d with %q", fields, a.status, a.body, want.status, want.part)
		}
	}

	un := func(body string) answer { return f.post("/unregister", body) }
	un(`{"type":"vLLM","modelname":"deepseek","tenant_id":"default","instance_id":"node1","block_size":4,"dp_rank":0}`).want(t, 200,
		`{"status":"unregistered successfully","removed_instances":["node1|default|0"]}`)
	if a := un(`{"modelname":"deepseek","instance_id":"node1","dp_rank":0}`); a.status != 404 {
		t.Errorf("again: %d %s", a.status, a.body)
	}
	if a := un(`{"modelname":"deepseek","instance_id":"7","dp_rank":3}`); a.status != 404 { // registered for tenant acme
		t.Errorf("wrong tenant: %d %s", a.status, a.body)
	}
	un(`{"type":"Mooncake","tenant_id":"acme","instance_id":7}`).want(t, 200, `{"status":"unregistered successfully","removed_instances":["7|acme|3"]}`)
}

// unpack decodes a msgpack answer into plain maps.
func unpack(t *testing.T, a answer) map[string]any {
	t.Helper()
	if ct := a.header.Get("Content-Type"); ct != "application/msgpack" {
		t.Fatalf("content type %q: %d %q", ct, a.status, a.body)
	}
	var m map[string]any
	dec := msgpack.NewDecoder(strings.NewReader(a.body))
	dec.UseLooseInterfaceDecoding(true)
	if err := dec.Decode(&m); err != nil {
		t.Fatal(err)
	}
	return m
}

func TestMooncakeMsgpack(t *testing.T) {
	f := setup(t, Config{})
	post := func(path string, v any) answer {
		b, err := msgpack.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		return f.do("POST", path, "application/msgpack", string(b))
	}
	type obj = map[string]any
	profile := obj{"strategy": "vllm_v1", "algorithm": "sha256_cbor", "python_hash_seed": "0", "index_projection": "low64_be"}
	reg := func(rank int, more obj) answer {
		v := obj{
			"endpoint": fmt.Sprintf("tcp://127.0.0.1:%d", 5557+rank), "replay_endpoint": "", "type": "vLLM", "modelname": "test-model", "lora_name": "",
			"tenant_id": "default", "instance_id": "engine-a", "block_size": 4, "dp_rank": rank, "cache_group": 0, "hash_profile": profile,
		}
		for k, x := range more {
			v[k] = x
		}
		return post("/register", v)
	}
	for rank := range 2 {
		a := reg(rank, nil)
		if d := cmp.Diff(obj{"status": "registered successfully", "instance_id": "engine-a"}, unpack(t, a)); d != "" || a.status != 200 {
			t.Errorf("register: %d %s", a.status, d)
		}
	}
	for field, bad := range map[string]any{
		"type": "Other", "cache_group": 2, "hash_profile": obj{"strategy": "vllm_v1", "algorithm": "md5", "python_hash_seed": "0", "index_projection": "low64_be"},
	} {
		a := reg(5, obj{field: bad})
		if m := unpack(t, a); a.status != 400 || m["reason"] == nil || !strings.HasPrefix(fmt.Sprint(m["field"]), field) {
			t.Errorf("%s: %d %v", field, a.status, m)
		}
	}
	numericSeed := obj{"strategy": "vllm_v1", "algorithm": "sha256_cbor", "python_hash_seed": 0, "index_projection": "low64_be"}
	if a := reg(5, obj{"hash_profile": numericSeed}); a.status != 400 || !strings.Contains(a.body, "python_hash_seed") {
		t.Errorf("numeric seed: %d %s", a.status, a.body)
	}
	a := reg(0, obj{"instance_id": "engine-b"})
	if m := unpack(t, a); a.status != 409 || m["field"] != "endpoint" {
		t.Errorf("endpoint of another instance: %d %v", a.status, m)
	}
	if a := f.do("POST", "/register", "application/msgpack", "\xc1"); a.status != 400 || !strings.HasPrefix(a.header.Get("Content-Type"), "text/plain") {
		t.Errorf("malformed: %d %v", a.status, a.header)
	}

	_, ids, locals := tokens(8)
	f.fake.hold("engine-a", 1, indexer.Device, 0, locals[:1]...)
	f.fake.hold("engine-a", 1, indexer.Host, 0, locals...)
	want := obj{"instances": obj{"engine-a": obj{
		"longest_matched": int64(8), "GPU": int64(4), "CPU": int64(8), "DISK": int64(0), "DP": obj{"0": int64(0), "1": int64(4)},
		"0": obj{"GPU": int64(0), "CPU": int64(0), "DISK": int64(0)}, "1": obj{"GPU": int64(4), "CPU": int64(8), "DISK": int64(0)},
	}}}
	var bin []byte
	for _, id := range ids {
		bin = append(bin, byte(id), byte(id>>8), 0, 0)
	}
	for name, list := range map[string]any{"array": ids, "binary": bin} {
		a := post("/query", obj{"model": "test-model", "lora_name": "", "tenant_id": "default", "block_size": 4, "token_ids": list})
		if d := cmp.Diff(want, unpack(t, a)); d != "" || a.status != 200 {
			t.Errorf("%s: %d %s", name, a.status, d)
		}
	}
	none := obj{"instances": obj{}}
	for name, v := range map[string]obj{
		"model": {"model": "x", "block_size": 4, "token_ids": ids}, "block size": {"model": "test-model", "block_size": 8, "token_ids": ids},
		"instance": {"model": "test-model", "block_size": 4, "token_ids": ids, "instance_id": "other"},
	} {
		if d := cmp.Diff(none, unpack(t, post("/query", v))); d != "" {
			t.Errorf("other %s: %s", name, d)
		}
	}
	a = post("/query", obj{"model": "test-model", "block_size": 4, "token_ids": []any{1, 2, -3}})
	if m := unpack(t, a); a.status != 400 || m["field"] != "token_ids" || m["index"] != int64(2) {
		t.Errorf("negative token: %d %v", a.status, m)
	}
	a = post("/query", obj{"model": "test-model", "block_size": 4, "token_ids": []byte{1, 0, 0}})
	if m := unpack(t, a); a.status != 400 || m["field"] != "token_ids" {
		t.Errorf("odd binary: %d %v", a.status, m)
	}

	services := unpack(t, f.get("/services"))
	if services["count"] != int64(2) {
		t.Errorf("services: %v", services)
	}
	one := services["services"].([]any)[1].(obj)
	if one["InstanceID"] != "engine-a" || one["DPRank"] != int64(1) ||
		one["HashProfile"].(obj)["root_digest"] != "4e1195df020de59e0d65a33a4279f1183e7ae4e5d980e309f8b55adff2e61c3e" {
		t.Errorf("service: %v", one)
	}
	context := unpack(t, f.get("/global_view"))["contexts"].([]any)[0].(obj)
	if d := cmp.Diff(obj{"engine-a": []any{int64(0), int64(1)}}, context["instances"]); d != "" {
		t.Errorf("global view: %s", d)
	}
	f.do("GET", "/services?format=json", "", "")
	if ct := f.do("GET", "/services", "", "", "Accept", "application/json").header.Get("Content-Type"); ct != "application/json" {
		t.Errorf("services in JSON: %q", ct)
	}

	a = post("/unregister", obj{"instance_id": "engine-a", "tenant_id": "default", "dp_rank": 1})
	if d := cmp.Diff(obj{"status": "unregistered successfully", "removed_instances": []any{"engine-a|default|1"}}, unpack(t, a)); d != "" || a.status != 200 {
		t.Errorf("unregister: %d %s", a.status, d)
	}
	a = post("/unregister", obj{"instance_id": "engine-a", "tenant_id": "default", "dp_rank": 1})
	if m := unpack(t, a); a.status != 404 || m["reason"] == nil {
		t.Errorf("unregister again: %d %v", a.status, m)
	}
}
