package oplist

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kvcluster/kvcluster/chaos/trace"
)

func build(t testing.TB, tr *trace.Trace, c Config) *List {
	t.Helper()
	l, err := Build(tr, c)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func generated(t testing.TB, requests int) *trace.Trace {
	t.Helper()
	tr, err := trace.Generate(trace.DefaultGenerate(requests))
	if err != nil {
		t.Fatal(err)
	}
	return tr
}

func TestMix(t *testing.T) {
	// The first outputs of splitmix64 with seed 0.
	if a, b := Mix(0), Mix(0x9E3779B97F4A7C15); a != 0xe220a8397b1dcdaf || b != 0x6e789e6aa1b965f4 {
		t.Errorf("Mix gives %#x, %#x", a, b)
	}
}

func TestUnmix(t *testing.T) {
	for x := uint64(1); x != 0; x <<= 1 {
		for _, v := range []uint64{x, x - 1, ^x} {
			if got := unmix(Mix(v)); got != v {
				t.Fatalf("unmix(Mix(%#x)) = %#x", v, got)
			}
		}
	}
}

func TestKnownAnswers(t *testing.T) {
	path := filepath.Join("..", "..", "..", "shared", "traces", Conversation)
	if _, err := os.Stat(path); err != nil {
		t.Logf("the public trace is not here: %v", err)
		return
	}
	tr, err := trace.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []Config{{1, 16, 2048}, {4, 128, 8192}, {4, 32, 8192}} {
		known, ok := ConversationKnown(c)
		if !ok {
			t.Fatalf("%s is not known", c)
		}
		l := build(t, tr, c)
		got := l.Totals()
		if known.Complete {
			if known.Totals.Distinct == 0 {
				got.Distinct = 0
			}
			got.LargestStore, got.LargestRemoval, got.LongestQuery = 0, 0, 0
			got.RequestsWithoutStore, got.Workers = 0, 0
			if d := cmp.Diff(known.Totals, got); d != "" {
				t.Errorf("%s: totals (-want +got):\n%s", c, d)
			}
		}
		if d := cmp.Diff(known.Answers, l.Expected()); d != "" {
			t.Errorf("%s: answers (-want +got):\n%s", c, d)
		}
	}
}

// plain restates the rules with slices and linear searches.
func plain(tr *trace.Trace, c Config) (ops []Op, a Answers) {
	caches := make([][]uint64, c.Workers) // least recent first
	for l := range tr.Requests {
		for s := range c.Copies {
			dup := uint64((s + l) % c.Copies)
			i := l*c.Copies + s
			w := i % c.Workers
			var raw []uint64
			for _, id := range tr.Requests[l].IDs {
				for j := range uint64(4) {
					raw = append(raw, (uint64(id)+dup*10_000_000)*4+j)
				}
			}
			content := func(raw []uint64) (out []uint64) {
				for _, r := range raw {
					out = append(out, Mix(r))
				}
				return out
			}
			key := func(raw []uint64) (out []uint64) {
				for _, r := range raw {
					out = append(out, Mix(Mix(r)))
				}
				return out
			}
			ops = append(ops, Op{Kind: Query, Worker: uint32(w), Request: uint32(i), Contents: content(raw)})
			depth := func(w int) (k int) {
				for k < len(raw) && slices.Contains(caches[w], raw[k]) {
					k++
				}
				return k
			}
			for v := range caches {
				a.Add(uint32(i), uint32(v), uint32(depth(v)))
			}
			if k := depth(w); k < len(raw) {
				o := Op{Kind: Stored, Worker: uint32(w), Request: uint32(i), Contents: content(raw[k:]), Keys: key(raw[k:])}
				if k > 0 {
					o.HasParent, o.Parent = true, Mix(Mix(raw[k-1]))
				}
				ops = append(ops, o)
			}
			for _, r := range slices.Backward(raw) {
				if at := slices.Index(caches[w], r); at >= 0 {
					caches[w] = slices.Delete(caches[w], at, at+1)
				}
				caches[w] = append(caches[w], r)
			}
			if n := len(caches[w]) - c.Capacity; n > 0 {
				ops = append(ops, Op{Kind: Removed, Worker: uint32(w), Request: uint32(i), Keys: key(caches[w][:n])})
				caches[w] = slices.Clone(caches[w][n:])
			}
		}
	}
	return ops, a
}

func TestAgainstPlainRestatement(t *testing.T) {
	tr := generated(t, 150)
	for _, c := range []Config{{1, 1, 300}, {2, 3, 150}, {3, 70, 700}, {1, 4, 5}} {
		want, answers := plain(tr, c)
		l := build(t, tr, c)
		if l.Len() != len(want) {
			t.Fatalf("%s: %d operations, want %d", c, l.Len(), len(want))
		}
		var o Op
		for i := range want {
			l.At(i, &o)
			if d := cmp.Diff(want[i], o); d != "" {
				t.Fatalf("%s: operation %d (-want +got):\n%s", c, i, d)
			}
		}
		if got := l.Expected(); got != answers {
			t.Errorf("%s: answers %+v, want %+v", c, got, answers)
		}
	}
}

func TestChecksumSeesEverything(t *testing.T) {
	l := build(t, generated(t, 60), Config{2, 3, 50})
	was := l.checksum()
	if was != l.Totals().Checksum {
		t.Fatalf("checksum %#x, totals say %#x", was, l.Totals().Checksum)
	}
	for name, word := range map[string]*uint64{"contents": &l.contents[7], "keys": &l.keys[len(l.keys)-1], "evicted": &l.evicted[0]} {
		*word ^= 1
		if l.checksum() == was {
			t.Errorf("a changed bit in %s leaves the checksum as it was", name)
		}
		*word ^= 1
	}
}

func TestIterationAllocatesNothing(t *testing.T) {
	l := build(t, generated(t, 200), Config{2, 4, 100})
	var a Answers
	n := testing.AllocsPerRun(5, func() {
		for o := range l.All {
			a.Add(o.Request, o.Worker, uint32(o.Blocks()))
		}
	})
	if n > 1 {
		t.Errorf("one pass allocates %.0f times", n)
	}
}

func TestAnswersMergeInAnyOrder(t *testing.T) {
	var all, even, odd Answers
	for i := range uint32(100) {
		all.Add(i, i%7, i%5)
		if i%2 == 0 {
			even.Add(i, i%7, i%5)
		} else {
			odd.Add(i, i%7, i%5)
		}
	}
	odd.Merge(even)
	if odd != all || all.Rows != 80 {
		t.Errorf("merged %+v, want %+v", odd, all)
	}
}

func TestValidate(t *testing.T) {
	tr := generated(t, 5)
	for _, c := range []Config{{0, 1, 1}, {1, 0, 1}, {1, 1, 0}, {108, 1, 1}, {1, 1 << 17, 1}} {
		if _, err := Build(tr, c); !errors.Is(err, ErrConfig) {
			t.Errorf("%s: error %v, want ErrConfig", c, err)
		}
	}
	far := &trace.Trace{TokensPerID: 512, Requests: []trace.Request{{IDs: []uint32{idsPerCopy}}}}
	if _, err := Build(far, Config{1, 1, 1}); !errors.Is(err, trace.ErrRange) {
		t.Errorf("an id that reaches into the next copy: error %v", err)
	}
}

func BenchmarkIterate(b *testing.B) {
	l := build(b, generated(b, 2000), Config{1, 16, 2048})
	blocks := 0
	for b.Loop() {
		for o := range l.All {
			blocks += o.Blocks()
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(blocks), "ns/block")
}
