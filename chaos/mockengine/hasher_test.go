package mockengine

import "testing"

// The engines' hashes have vectors in package enginehash; here they must come out of
// the same blocks, chained as an engine chains them.
func TestHashers(t *testing.T) {
	next := func(f Format, lora, salt string, blocks ...[]uint32) (out []uint64) {
		h, err := newHasher(f)
		if err != nil {
			t.Fatal(err)
		}
		h.Begin("other", "other") // what came before must not matter
		h.Next([]uint32{9, 9, 9, 9}, 0)
		h.Begin(lora, salt)
		for _, b := range blocks {
			out = append(out, h.Next(b, 0))
		}
		return out
	}
	a, b := []uint32{1, 2, 3, 4}, []uint32{5, 6, 7, 8}
	if got := next(VLLMMap, "", "", a, b); got[0] != 9561501211280363793 || got[1] != 15292913576410714033 {
		t.Errorf("vLLM: %d", got)
	}
	if got := next(SGLangMap, "", "", a, b); got[0] != 14958615928728313947 || got[1] != 5674439469042975057 {
		t.Errorf("SGLang: %d", got)
	}
	if got := next(SGLangArray, "", "tenant-a", a); got[0] != 3718046898735569995 {
		t.Errorf("SGLang with a salt: %d", got)
	}
	if got := next(SGLangBigram, "", "", []uint32{21, 22, 23, 24, 25}); got[0] != 3528790144829477762 {
		t.Errorf("SGLang pairs: %d", got)
	}
	seen := map[uint64]string{}
	for _, f := range []Format{VLLMMap, TRTLLM} {
		for _, ns := range [][2]string{{"", ""}, {"a", ""}, {"", "a"}, {"a", "b"}, {"ab", ""}} {
			for _, h := range next(f, ns[0], ns[1], a, a) {
				name := string(f) + " " + ns[0] + "/" + ns[1]
				if other, ok := seen[h]; ok {
					t.Errorf("%s and %s share a hash", name, other)
				}
				seen[h] = name
			}
		}
	}
	if _, err := newHasher("vllm"); err == nil {
		t.Error("a format that does not exist has a hasher")
	}
	if _, err := newEncoder("vllm"); err == nil {
		t.Error("a format that does not exist has an encoder")
	}
}
