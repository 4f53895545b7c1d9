package contract

import (
	"fmt"

	"github.com/kvcluster/kvcluster/indexer"
	"github.com/kvcluster/kvcluster/indexer/blockhash"
)

const nobody = `{"scores":{},"frequencies":[],"instances":{}}`

// The worked example of the score response: a device chain of two blocks on rank 0 and
// one on rank 1, and what host and disk add.
func (s *suite) workedExample() {
	g := Group{Model: "worked", BlockSize: 16}
	for rank := range uint32(2) {
		s.worker(g, "7", rank)
	}
	p := prompt(1, 5*16)
	b := Blocks{Group: g, Tokens: p, To: 5}
	s.store(g, "7", 0, indexer.Device, p, 0, 2)
	s.store(g, "7", 1, indexer.Device, p, 0, 1)
	s.store(g, "7", 0, indexer.Host, p, 2, 3)
	s.store(g, "7", 0, indexer.Disk, p, 3, 5)
	s.store(g, "7", 1, indexer.Disk, p, 1, 2)
	s.ask(post("/query_by_hash", `{"block_hashes":[`+list(b.Locals())+`,66],"model_name":"worked"}`), is(200,
		`{"scores":{"7":{"0":32,"1":16}},"frequencies":[],"instances":{"7":{"longest_matched":80,"gpu":32,"dp":{"0":32,"1":16},"cpu":48,"disk":80}}}`))
}

func (s *suite) prompts() {
	g := Group{Model: "prompts", BlockSize: 4}
	for _, id := range []string{"401", "402", "4010", "name"} {
		s.worker(g, id, 0)
	}
	p, other := prompt(2, 18), prompt(3, 4)
	s.store(g, "401", 0, indexer.Device, p, 0, 4)
	s.store(g, "4010", 0, indexer.Device, p, 0, 4)
	s.Remove(s.T, Blocks{Instance: "4010", Group: g, Tier: indexer.Device, Tokens: p, From: 2, To: 3}) // a hole
	s.store(g, "402", 0, indexer.External, p, 0, 3)
	s.store(g, "name", 0, indexer.Device, other, 0, 1)
	s.ask(post("/query", `{"token_ids":[`+list(p)+`],"model_name":"prompts","routing_group":"default","tenant_id":"ignored"}`), is(200,
		`{"scores":{"401":{"0":16},"4010":{"0":8}},"frequencies":[],"instances":{
	  "401":{"longest_matched":16,"gpu":16,"dp":{"0":16},"cpu":16,"disk":16},
	  "4010":{"longest_matched":8,"gpu":8,"dp":{"0":8},"cpu":8,"disk":8},
	  "402":{"longest_matched":12,"gpu":0,"dp":{"0":0},"cpu":0,"disk":12}}}`))
	s.ask(post("/query", `{"token_ids":[`+list(other)+`],"model_name":"prompts"}`), is(200,
		`{"scores":{"name":{"0":4}},"frequencies":[],"instances":{"name":{"longest_matched":4,"gpu":4,"dp":{"0":4},"cpu":4,"disk":4}}}`))
	for _, tokens := range []string{"1,2,3", "", "9,9,9,9,9"} {
		s.ask(post("/query", `{"token_ids":[`+tokens+`],"model_name":"prompts"}`), is(200, nobody))
	}
	s.ask(post("/query_by_hash", `{"block_hashes":[],"model_name":"prompts"}`), is(200, nobody))
	s.ask(post("/query", `{"token_ids":[1],"model_name":"prompts","routing_group":"x"}`), is(404, `{"error":"no indexer for model=prompts routing_group=x"}`))
	s.ask(post("/query_by_hash", `{"block_hashes":[1],"model_name":"q:\"/"}`), is(404, `{"error":"no indexer for model=q:\"/ routing_group=default"}`))
	// The hole is filled again, and what was behind it counts.
	s.store(g, "4010", 0, indexer.Device, p, 2, 3)
	s.ask(post("/query", `{"token_ids":[`+list(p)+`],"model_name":"prompts"}`), has(200, `{"scores":{"401":{"0":16},"4010":{"0":16}}}`))
}

// LoRA and salt are part of the seed; empty means absent.
func (s *suite) namespaces() {
	g := Group{Model: "namespaces", BlockSize: 4}
	p := prompt(4, 4)
	for i, ns := range [][2]string{{"", ""}, {"adapter-a", ""}, {"adapter-a", "tenant-a"}} {
		id := fmt.Sprint(411 + i)
		s.worker(g, id, 0)
		s.Store(s.T, Blocks{Instance: id, Group: g, Tier: indexer.Device, Tokens: p, To: 1, Lora: ns[0], Salt: ns[1]})
	}
	for fields, want := range map[string]string{
		``: "411", `,"lora_name":"","cache_salt":""`: "411", `,"lora_name":"adapter-a"`: "412",
		`,"lora_name":"adapter-a","cache_salt":"tenant-a"`: "413", `,"cache_salt":"tenant-a"`: "",
	} {
		body := nobody
		if want != "" {
			body = `{"scores":{"` + want + `":{"0":4}},"frequencies":[],"instances":{"` + want + `":{"longest_matched":4,"gpu":4,"dp":{"0":4},"cpu":4,"disk":4}}}`
		}
		s.ask(post("/query", `{"token_ids":[`+list(p)+`],"model_name":"namespaces"`+fields+`}`), is(200, body))
	}
}

func (s *suite) hashes() {
	g := Group{Model: "hashes", BlockSize: 4}
	s.worker(g, "421", 0)
	b := Blocks{Group: g, To: 2}
	for i := uint32(0); ; i++ { // a prompt whose second hash is negative when it is signed
		if b.Tokens = prompt(100+i, 8); b.Locals()[1]>>63 != 0 {
			break
		}
	}
	s.store(g, "421", 0, indexer.Device, b.Tokens, 0, 2)
	l := b.Locals()
	seq := blockhash.AppendSequence(nil, l)
	want := is(200, `{"scores":{"421":{"0":8}},"frequencies":[],"instances":{"421":{"longest_matched":8,"gpu":8,"dp":{"0":8},"cpu":8,"disk":8}}}`)
	s.ask(post("/query_by_hash", fmt.Sprintf(`{"block_hashes":[%d,%d],"model_name":"hashes"}`, l[0], int64(l[1]))), want)
	s.ask(post("/query_by_hash", fmt.Sprintf(`{"block_hashes":[%d,%d],"model_name":"hashes"}`, l[0], l[1])), want)
	s.ask(post("/query_by_hash", fmt.Sprintf(`{"seq_hashes":[%d,%d],"model_name":"hashes"}`, seq[0], seq[1])), want)
	// The salt is refused before the group is looked for.
	refused := is(400, `{"error":"cache_salt is not accepted by /query_by_hash; block_hashes must already include the intended cache salt"}`)
	s.ask(post("/query_by_hash", `{"block_hashes":[1],"model_name":"none","cache_salt":""}`), refused)
	s.ask(post("/query_by_hash", `{"block_hashes":[1],"model_name":"hashes","cache_salt":"s"}`), refused)
	for body, code := range map[string]int{
		`{"block_hashes":[1],"model_name":"hashes","cache_salt":null}`:                       200,
		`{"block_hashes":[18446744073709551615,-9223372036854775808],"model_name":"hashes"}`: 200,
		`{"block_hashes":[18446744073709551616],"model_name":"hashes"}`:                      422,
		`{"block_hashes":[-9223372036854775809],"model_name":"hashes"}`:                      422,
		`{"block_hashes":[1.5],"model_name":"hashes"}`:                                       422,
		`{"block_hashes":["1"],"model_name":"hashes"}`:                                       422,
		`{"block_hashes":null,"model_name":"hashes"}`:                                        422,
		`{"model_name":"hashes"}`:                                                            422,
		`{"block_hashes":[1]}`:                                                               422,
		`{"block_hashes":[1],"seq_hashes":[1],"model_name":"hashes"}`:                        400,
		`{"block_hash":[1],"seq_hashes":[2],"model_name":"hashes"}`:                          400,
		`{"block_hash":[1],"seq_hashes":[1],"model_name":"hashes"}`:                          200,
	} {
		s.ask(post("/query_by_hash", body), status(code, ""))
	}
}

// Where engines send EAGLE pages a slot's chain is of one kind or the other; the larger
// depth counts for each slot, whoever reads the stream with the pages.
func (s *suite) bigram() {
	g := Group{Model: "pages", BlockSize: 4}
	s.worker(g, "431", 0)
	s.worker(g, "432", 0)
	p := prompt(5, 13)
	s.store(g, "431", 0, indexer.Device, p, 0, 2)
	query := post("/query", `{"token_ids":[`+list(p)+`],"model_name":"pages"}`)
	s.ask(query, is(200, `{"scores":{"431":{"0":8}},"frequencies":[],"instances":{"431":{"longest_matched":8,"gpu":8,"dp":{"0":8},"cpu":8,"disk":8}}}`))
	s.Store(s.T, Blocks{Instance: "432", Group: g, Tier: indexer.Device, Tokens: p, To: 3, Bigram: true})
	s.ask(query, is(200, `{"scores":{"431":{"0":8},"432":{"0":12}},"frequencies":[],"instances":{
	  "431":{"longest_matched":8,"gpu":8,"dp":{"0":8},"cpu":8,"disk":8},"432":{"longest_matched":12,"gpu":12,"dp":{"0":12},"cpu":12,"disk":12}}}`))
}
