package blockhash

import (
	"slices"
	"testing"

	"github.com/zeebo/xxh3"
)

func seq(from, n int) []uint32 {
	t := make([]uint32, n)
	for i := range t {
		t[i] = uint32(from + i)
	}
	return t
}

// The values are the vectors of wire-vectors.json, section hashes.
func TestVectors(t *testing.T) {
	if got := xxh3.HashStringSeed("test data", 1337); got != 13226331709069118873 {
		t.Errorf("xxh3: %d", got)
	}
	f := func(tokens []uint32, size int, lora, salt string, want ...uint64) {
		t.Helper()
		if got := AppendTokens(nil, tokens, size, NamespaceSeed(lora, salt)); !slices.Equal(got, want) {
			t.Errorf("got %d, want %d", got, want)
		}
	}
	f(seq(0, 8), 4, "", "", 9143094415614847814, 12124091508212882195)
	f(seq(0, 11), 4, "", "", 9143094415614847814, 12124091508212882195)
	f(seq(1, 16), 16, "", "", 16863443419780771464)
	f(seq(0, 48), 16, "", "", 15310707395893867146, 15292316782987903195, 5532946206955930018)
	f(seq(0, 4), 4, "adapter-a", "", 6665157333201000639)
	f(seq(0, 4), 4, "", "tenant-a", 17009624042690211646)
	f(seq(0, 4), 4, "adapter-a", "tenant-a", 8269515957840517240)
	f(slices.Repeat([]uint32{7}, 128), 128, "", "", 16733376827091874706)
	f(seq(0, 8), 0, "", "")

	if got := NamespaceSeed("adapter-a", "tenant-a"); got != 10790858310771630931 {
		t.Errorf("seed: %d", got)
	}
	eagle := Content{Tokens: seq(0, 6), BlockSize: 2, Window: 3}.AppendLocals(nil, Seed)
	if want := []uint64{11646242937812223497, 9948816348502404300}; !slices.Equal(eagle, want) {
		t.Errorf("eagle: %d", eagle)
	}
	mm := Content{Tokens: seq(0, 2), BlockSize: 2, Window: 2, Multimodal: []Item{{0, 42}}}.AppendLocals(nil, Seed)
	if want := []uint64{6100948656312251355}; !slices.Equal(mm, want) {
		t.Errorf("multimodal: %d", mm)
	}
	s := AppendSequence(nil, []uint64{11, 22, 33})
	if want := []uint64{11, 750553365844651409, 3257565445809651757}; !slices.Equal(s, want) {
		t.Errorf("sequence: %d", s)
	}
	if got := ItemHash([]byte("0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef")); got != 0x0123456789abcdef {
		t.Errorf("hex item: %#x", got)
	}
	if got := ItemHash([]byte("img-1")); got != 14770383865288705413 {
		t.Errorf("item: %d", got)
	}
}
