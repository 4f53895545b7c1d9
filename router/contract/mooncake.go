package contract

import (
	"fmt"
	"strings"

	"github.com/google/go-cmp/cmp"
	"github.com/vmihailenco/msgpack/v5"

	"github.com/kvcluster/kvcluster/indexer"
	"github.com/kvcluster/kvcluster/indexer/blockhash"
)

// mooncakeDraft is the worked example of the first draft: block size 2, six tokens. H1 is
// on GPU of ranks 0 and 1, CPU and disk; H2 on GPU of rank 0 and CPU; H3 on disk only.
func (s *suite) mooncakeDraft() {
	g := Group{Model: "draft", BlockSize: 2}
	for rank := range uint32(2) {
		endpoint, replay := s.Endpoint(s.T, "engine", rank)
		s.change(post("/register", fmt.Sprintf(`{"modelname":"draft","type":"SGLang","instance_id":"engine","endpoint":%q,"replay_endpoint":%q,"block_size":2,"dp_rank":%d}`, endpoint, replay, rank)), status(200, ""))
	}
	b := Blocks{Group: g, Tokens: []uint32{1, 15, 100, 55, 89, 7}, To: 3}
	s.store(g, "engine", 0, indexer.Device, b.Tokens, 0, 2)
	s.store(g, "engine", 1, indexer.Device, b.Tokens, 0, 1)
	s.store(g, "engine", 0, indexer.Host, b.Tokens, 0, 2)
	s.store(g, "engine", 0, indexer.Disk, b.Tokens, 0, 1)
	s.store(g, "engine", 0, indexer.Disk, b.Tokens, 2, 3)
	want := is(200, `{"data":{"engine":{"longest_matched":6,"GPU":4,"DP":{"0":4,"1":2},"CPU":4,"DISK":4}}}`)
	tokens := list(b.Tokens)
	s.ask(post("/query", `{"model":"draft","token_ids":[`+tokens+`]}`), want)
	s.ask(post("/query", `{"model":"draft","lora_id":-1,"token_ids":[`+tokens+`],"medium":["L1","L2","L3"]}`), want)
	s.ask(post("/query_by_hash", `{"model":"draft","block_hash":[`+list(blockhash.AppendSequence(nil, b.Locals()))+`]}`), want)
	// The same data in Dynamo's way of counting.
	s.ask(post("/query", `{"model_name":"draft","token_ids":[`+tokens+`]}`), is(200,
		`{"scores":{"engine":{"0":4,"1":2}},"frequencies":[],"instances":{"engine":{"longest_matched":6,"gpu":4,"dp":{"0":4,"1":2},"cpu":4,"disk":6}}}`))
	s.ask(post("/query", `{"model":"draft","token_ids":[9,9]}`), is(200, `{"data":{}}`))
}

// A prefix held partly by one rank and partly by another is held by none.
func (s *suite) mooncakeRanks() {
	g := Group{Model: "ranks", BlockSize: 4}
	s.worker(g, "501", 0)
	s.worker(g, "501", 1)
	b := Blocks{Instance: "501", Group: g, Tier: indexer.Device, Tokens: prompt(6, 8), To: 2}
	s.store(g, "501", 0, indexer.Device, b.Tokens, 0, 1)
	s.store(g, "501", 1, indexer.Device, b.Tokens, 0, 2)
	s.Remove(s.T, Blocks{Instance: "501", Rank: 1, Group: g, Tier: indexer.Device, Tokens: b.Tokens, To: 1})
	s.ask(post("/query_by_hash", `{"model":"ranks","block_hashes":[`+list(b.Locals())+`]}`), is(200, `{"data":{"501":{"longest_matched":4,"GPU":4,"DP":{"0":4},"CPU":0,"DISK":0}}}`))
}

// A long prefix whose blocks are in turn on the device and in the host's memory.
func (s *suite) mooncakeLong() {
	const blocks = 300
	g := Group{Model: "long", BlockSize: 4}
	s.worker(g, "502", 0)
	b := Blocks{Group: g, Tokens: prompt(7, 4*blocks), To: blocks}
	s.store(g, "502", 0, indexer.Device, b.Tokens, 0, blocks)
	s.store(g, "502", 0, indexer.Host, b.Tokens, 0, blocks)
	for i := range blocks {
		gone := Blocks{Instance: "502", Group: g, Tier: indexer.Host, Tokens: b.Tokens, From: i, To: i + 1}
		if i%2 == 1 {
			gone.Tier = indexer.Device
		}
		if i >= blocks-20 { // the last ones are enough; the rest has both
			s.Remove(s.T, gone)
		}
	}
	s.ask(post("/query_by_hash", `{"model":"long","block_hashes":[`+list(b.Locals())+`,7,8]}`), is(200, `{"data":{"502":{"longest_matched":1200,"GPU":1160,"DP":{"0":1160},"CPU":1160,"DISK":0}}}`))
}

func (s *suite) mooncakeJSON() {
	reg := func(instance string, rank uint32, fields string) Request {
		endpoint, replay := s.Endpoint(s.T, instance, rank)
		return post("/register", fmt.Sprintf(`{"endpoint":%q,"replay_endpoint":%q,"modelname":"deepseek","block_size":4,%s}`, endpoint, replay, fields))
	}
	s.change(reg("node1", 0, `"type":"SGLang","instance_id":"node1","dp_rank":0,"tenant_id":"default","lora_name":""`), is(200, `{"status":"registered successfully","instance_id":"node1"}`))
	s.change(reg("node2", 0, `"type":"SGLang","instance_id":"node2","dp_rank":0,"tenant_id":"default","lora_name":"sql","additionalsalt":"w8a8"`), is(200, `{"status":"registered successfully","instance_id":"node2"}`))
	s.change(reg("507", 3, `"type":"Mooncake","instance_id":507,"dp_rank":3,"tenant_id":"tenant"`), is(200, `{"status":"registered successfully","instance_id":"507"}`))
	s.ask(reg("node1", 0, `"type":"vLLM","instance_id":"node1","dp_rank":0`), is(409, `{"error":"instance node1 dp_rank 0 already registered","reason":"instance node1 dp_rank 0 already registered"}`))
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
		s.ask(post("/register", `{"endpoint":"tcp://1.1.1.1:5557","modelname":"deepseek","block_size":4,`+c.fields+`}`), status(c.status, c.part))
	}

	g := Group{Model: "deepseek", BlockSize: 4}
	p := prompt(8, 12)
	b := Blocks{Group: g, Tokens: p, To: 3}
	s.store(g, "node1", 0, indexer.Device, p, 0, 2)
	s.store(g, "node1", 0, indexer.Host, p, 0, 3)
	s.Store(s.T, Blocks{Instance: "node2", Group: g, Tier: indexer.Device, Tokens: p, To: 3, Lora: "sql", Salt: "w8a8"})
	s.store(Group{Model: "deepseek", RoutingGroup: "tenant", BlockSize: 4}, "507", 3, indexer.Disk, p, 0, 1)
	query := func(fields string) Request {
		return post("/query", `{"model":"deepseek","token_ids":[`+list(p)+`],`+fields+`}`)
	}
	const node1 = `"node1":{"longest_matched":12,"GPU":8,"DP":{"0":8},"CPU":12,"DISK":0}`
	s.ask(query(`"block_size":4`), is(200, `{"default":{`+node1+`}}`))
	s.ask(query(`"block_size":4,"instance_id":"node2"`), is(200, `{"default":{}}`))
	s.ask(query(`"block_size":4,"instance_id":"node1","tenant_id":"default"`), is(200, `{"default":{`+node1+`}}`))
	s.ask(query(`"block_size":4,"lora_name":"sql","cache_salt":"w8a8"`), is(200, `{"default":{"node2":{"longest_matched":12,"GPU":12,"DP":{"0":12},"CPU":0,"DISK":0}}}`))
	s.ask(query(`"block_size":4,"tenant_id":"tenant"`), is(200, `{"tenant":{"507":{"longest_matched":4,"GPU":0,"DP":{"3":0},"CPU":0,"DISK":4}}}`))
	s.ask(post("/query_by_hash", `{"model":"deepseek","block_size":4,"cache_salt":"any","seq_hashes":[`+list(blockhash.AppendSequence(nil, b.Locals()))+`,5]}`), is(200, `{"default":{`+node1+`}}`))
	for _, c := range []struct {
		fields string
		status int
		part   string
	}{
		{`"tenant_id":"default"`, 422, "missing field `block_size`"},
		{`"block_size":0`, 400, "block_size must be above 0"},
		{`"block_size":8`, 400, "existing=4, requested=8"},
		{`"block_size":4,"tenant_id":"nobody"`, 404, "no indexer for model=deepseek tenant_id=nobody"},
		{`"block_size":4,"lora_id":3`, 400, "lora_id"},
		{`"block_size":4,"lora_id":3,"lora_name":""`, 400, "exclude each other"},
		{`"block_size":"4"`, 422, "block_size"},
		{`"block_size":4,"modelname":"other"`, 400, "different"},
	} {
		s.ask(query(c.fields), status(c.status, c.part))
	}

	s.change(post("/unregister", `{"type":"vLLM","modelname":"deepseek","tenant_id":"default","instance_id":"node1","block_size":4,"dp_rank":0}`), is(200,
		`{"status":"unregistered successfully","removed_instances":["node1|default|0"]}`))
	s.ask(query(`"block_size":4`), is(200, `{"default":{}}`))
	s.ask(post("/unregister", `{"modelname":"deepseek","instance_id":"node1","dp_rank":0}`), status(404, ""))
	s.ask(post("/unregister", `{"modelname":"deepseek","instance_id":"507","dp_rank":3}`), status(404, "")) // registered for another tenant
	s.change(post("/unregister", `{"type":"Mooncake","tenant_id":"tenant","instance_id":507}`), is(200, `{"status":"unregistered successfully","removed_instances":["507|tenant|3"]}`))
}

type object = map[string]any

// pack makes a request in msgpack.
func (s *suite) pack(path string, v any) Request {
	b, err := msgpack.Marshal(v)
	if err != nil {
		s.Fatal(err)
	}
	return Request{Method: "POST", Path: path, ContentType: "application/msgpack", Body: string(b)}
}

// unpacked wants a status and judges an answer in msgpack.
func unpacked(code int, judge func(object) string) check {
	return func(a Answer) string {
		if ct := a.Header.Get("Content-Type"); ct != "application/msgpack" || a.Status != code {
			return fmt.Sprintf("%d of type %q, want %d", a.Status, ct, code)
		}
		var m object
		dec := msgpack.NewDecoder(strings.NewReader(a.Body))
		dec.UseLooseInterfaceDecoding(true)
		if err := dec.Decode(&m); err != nil {
			return err.Error()
		}
		return judge(m)
	}
}

func same(want object) func(object) string {
	return func(got object) string { return cmp.Diff(want, got) }
}

func (s *suite) mooncakeMsgpack() {
	profile := object{"strategy": "vllm_v1", "algorithm": "sha256_cbor", "python_hash_seed": "0", "index_projection": "low64_be"}
	reg := func(rank uint32, more object) Request {
		endpoint, replay := s.Endpoint(s.T, "engine-a", rank)
		v := object{
			"endpoint": endpoint, "replay_endpoint": replay, "type": "SGLang", "modelname": "test-model", "lora_name": "",
			"tenant_id": "default", "instance_id": "engine-a", "block_size": 4, "dp_rank": rank, "cache_group": 0, "hash_profile": profile,
		}
		for k, x := range more {
			v[k] = x
		}
		return s.pack("/register", v)
	}
	for rank := range uint32(2) {
		s.change(reg(rank, nil), unpacked(200, same(object{"status": "registered successfully", "instance_id": "engine-a"})))
	}
	for field, bad := range map[string]any{
		"type": "Other", "cache_group": 2, "hash_profile": object{"strategy": "vllm_v1", "algorithm": "md5", "python_hash_seed": "0", "index_projection": "low64_be"},
	} {
		s.ask(reg(5, object{field: bad}), unpacked(400, func(m object) string {
			if m["reason"] == nil || !strings.HasPrefix(fmt.Sprint(m["field"]), field) {
				return fmt.Sprintf("want field %s: %v", field, m)
			}
			return ""
		}))
	}
	numericSeed := object{"strategy": "vllm_v1", "algorithm": "sha256_cbor", "python_hash_seed": 0, "index_projection": "low64_be"}
	s.ask(reg(5, object{"hash_profile": numericSeed}), status(400, "python_hash_seed"))
	field := func(name string, index any) func(object) string {
		return func(m object) string {
			if m["field"] != name || m["index"] != index {
				return fmt.Sprintf("want field %s, index %v: %v", name, index, m)
			}
			return ""
		}
	}
	s.ask(reg(0, object{"instance_id": "engine-b"}), unpacked(409, field("endpoint", nil)))
	s.ask(Request{Method: "POST", Path: "/register", ContentType: "application/msgpack", Body: "\xc1"}, status(400, ""), func(a Answer) string {
		if !strings.HasPrefix(a.Header.Get("Content-Type"), "text/plain") {
			return "want plain text"
		}
		return ""
	})

	g := Group{Model: "test-model", BlockSize: 4}
	ids := prompt(9, 8)
	s.store(g, "engine-a", 1, indexer.Device, ids, 0, 1)
	s.store(g, "engine-a", 1, indexer.Host, ids, 0, 2)
	n := func(gpu, cpu int64) object { return object{"GPU": gpu, "CPU": cpu, "DISK": int64(0)} }
	want := object{"instances": object{"engine-a": object{
		"longest_matched": int64(8), "GPU": int64(4), "CPU": int64(8), "DISK": int64(0), "DP": object{"0": int64(0), "1": int64(4)},
		"0": n(0, 0), "1": n(4, 8),
	}}}
	var bin []byte
	for _, id := range ids {
		bin = append(bin, byte(id), byte(id>>8), byte(id>>16), byte(id>>24))
	}
	for _, tokens := range []any{ids, bin} {
		s.ask(s.pack("/query", object{"model": "test-model", "lora_name": "", "tenant_id": "default", "block_size": 4, "token_ids": tokens}), unpacked(200, same(want)))
	}
	for _, v := range []object{
		{"model": "nobody's", "block_size": 4, "token_ids": ids}, {"model": "test-model", "block_size": 8, "token_ids": ids},
		{"model": "test-model", "block_size": 4, "token_ids": ids, "instance_id": "other"},
	} {
		s.ask(s.pack("/query", v), unpacked(200, same(object{"instances": object{}})))
	}
	s.ask(s.pack("/query", object{"model": "test-model", "block_size": 4, "token_ids": []any{1, 2, -3}}), unpacked(400, field("token_ids", int64(2))))
	s.ask(s.pack("/query", object{"model": "test-model", "block_size": 4, "token_ids": []byte{1, 0, 0}}), unpacked(400, func(m object) string {
		return field("token_ids", m["index"])(m)
	}))

	s.ask(get("/services"), unpacked(200, func(m object) string {
		for _, x := range m["services"].([]any) {
			one := x.(object)
			if one["InstanceID"] == "engine-a" && one["DPRank"] == int64(1) {
				if d := one["HashProfile"].(object)["root_digest"]; d != "4e1195df020de59e0d65a33a4279f1183e7ae4e5d980e309f8b55adff2e61c3e" {
					return fmt.Sprintf("root digest %v", d)
				}
				return ""
			}
		}
		return fmt.Sprintf("no rank 1 of engine-a in %v", m)
	}))
	s.ask(get("/global_view"), unpacked(200, func(m object) string {
		for _, c := range m["contexts"].([]any) {
			if in := c.(object)["instances"].(object); in["engine-a"] != nil {
				return cmp.Diff(object{"engine-a": []any{int64(0), int64(1)}}, in)
			}
		}
		return fmt.Sprintf("no engine-a in %v", m)
	}))
	s.ask(Request{Method: "GET", Path: "/services", Header: [2]string{"Accept", "application/json"}}, status(200, ""), func(a Answer) string {
		if ct := a.Header.Get("Content-Type"); ct != "application/json" {
			return "services in JSON: " + ct
		}
		return ""
	})

	un := s.pack("/unregister", object{"instance_id": "engine-a", "tenant_id": "default", "dp_rank": 1})
	s.change(un, unpacked(200, same(object{"status": "unregistered successfully", "removed_instances": []any{"engine-a|default|1"}})))
	s.ask(un, unpacked(404, func(m object) string {
		if m["reason"] == nil {
			return fmt.Sprintf("no reason in %v", m)
		}
		return ""
	}))
}
