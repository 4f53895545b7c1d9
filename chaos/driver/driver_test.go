package driver

import (
	"errors"
	"math"
	"reflect"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kvcluster/kvcluster/chaos/trace"
	"github.com/kvcluster/kvcluster/indexer/blockhash"
)

func plan(t *testing.T, requests int, c Config) *Plan {
	t.Helper()
	tr, err := trace.Generate(trace.DefaultGenerate(requests))
	if err != nil {
		t.Fatal(err)
	}
	p, err := New(tr, c)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestStickySessionsStayOnOneWorker(t *testing.T) {
	p := plan(t, 4000, Config{Workers: 8})
	home := map[uint32]int{}
	load := make([]int, 8)
	for i, r := range p.Trace().Requests {
		w := p.Worker(i)
		if was, ok := home[r.Session]; ok && was != w {
			t.Fatalf("session %d is on workers %d and %d", r.Session, was, w)
		}
		home[r.Session] = w
		load[w]++
	}
	for w, n := range load {
		if math.Abs(float64(n)-500) > 150 {
			t.Errorf("worker %d serves %d of 4000 requests, want about 500", w, n)
		}
	}
	if !reflect.DeepEqual(p, plan(t, 4000, Config{Workers: 8, Seed: 42, Policy: Sticky})) {
		t.Error("the defaults are not seed 42 and sticky, or the plan is not deterministic")
	}
}

func TestRandomSpreadsSessions(t *testing.T) {
	p := plan(t, 4000, Config{Workers: 8, Policy: Random})
	home := map[uint32]int{}
	moved := 0
	for i, r := range p.Trace().Requests {
		if was, ok := home[r.Session]; ok && was != p.Worker(i) {
			moved++
		}
		home[r.Session] = p.Worker(i)
	}
	if moved < 500 {
		t.Errorf("only %d turns changed the worker", moved)
	}
}

func TestRequestsAreOrderedByTime(t *testing.T) {
	tr, err := trace.Generate(trace.DefaultGenerate(500))
	if err != nil {
		t.Fatal(err)
	}
	// Copies follow one another, so file order is not time order.
	if tr, err = tr.Duplicate(3); err != nil {
		t.Fatal(err)
	}
	p, err := New(tr, Config{Workers: 4})
	if err != nil {
		t.Fatal(err)
	}
	var all []uint32
	for w := range 4 {
		list := p.Requests(w)
		for k, i := range list {
			if p.Worker(int(i)) != w {
				t.Fatalf("request %d is on the list of worker %d", i, w)
			}
			if k > 0 {
				a, b := tr.Requests[list[k-1]].Time, tr.Requests[i].Time
				if a > b || a == b && list[k-1] > i {
					t.Fatalf("worker %d: request %d comes after %d", w, i, list[k-1])
				}
			}
		}
		all = append(all, list...)
	}
	slices.Sort(all)
	for i, r := range all {
		if int(r) != i {
			t.Fatalf("request %d is missing or doubled", i)
		}
	}
}

func TestTokensAnyStretch(t *testing.T) {
	p := plan(t, 30, Config{Workers: 2})
	for i := range p.Trace().Requests {
		n := p.Tokens(i, true)
		whole := p.AppendTokens(nil, i, 0, n)
		prompt := p.Trace().AppendTokens(nil, i)
		if !slices.Equal(whole[:len(prompt)], prompt) || len(whole) != n || n != len(prompt)+int(p.Trace().Requests[i].Output) {
			t.Fatalf("request %d: prompt differs from the trace's", i)
		}
		for _, c := range [][2]int{{0, 1}, {n / 3, n / 2}, {len(prompt) - 1, n}, {n - 1, n}, {5, 5}} {
			if got := p.AppendTokens(nil, i, c[0], c[1]); !slices.Equal(got, whole[c[0]:c[1]]) {
				t.Fatalf("request %d: tokens %d..%d differ", i, c[0], c[1])
			}
		}
	}
	a, b := p.AppendTokens(nil, 0, p.Tokens(0, false), p.Tokens(0, true)), p.AppendTokens(nil, 1, p.Tokens(1, false), p.Tokens(1, true))
	if a[0] == b[0] || a[0] < 1<<31 {
		t.Errorf("generated tokens %d and %d", a[0], b[0])
	}
}

func TestNamespacesOnAShare(t *testing.T) {
	c := Config{Workers: 4, LoraShare: 0.3, SaltShare: 0.1, Loras: 2, Salts: 3}
	p, none := plan(t, 4000, c), plan(t, 4000, Config{Workers: 4})
	lora, salt := map[string]int{}, map[string]int{}
	for i := range p.Trace().Requests {
		if p.Worker(i) != none.Worker(i) {
			t.Fatalf("request %d moved because of the shares", i)
		}
		n := p.Namespace(i)
		lora[n.Lora]++
		salt[n.Salt]++
		if none.Namespace(i) != (Namespace{}) {
			t.Fatalf("request %d has a namespace without a share", i)
		}
	}
	if len(lora) != 3 || len(salt) != 4 || math.Abs(float64(4000-lora[""])-1200) > 200 || math.Abs(float64(4000-salt[""])-400) > 150 {
		t.Errorf("LoRA %v, salts %v", lora, salt)
	}
	i := 0
	for p.Namespace(i).Lora == "" {
		i++
	}
	pr := p.Prompt(i)
	want := blockhash.AppendTokens(nil, pr.Tokens, 64, blockhash.NamespaceSeed(pr.Lora, pr.Salt))
	if d := cmp.Diff(want, p.AppendLocals(nil, i, 64)); d != "" || pr.Worker != p.Worker(i) {
		t.Errorf("local hashes of prompt %d:\n%s", i, d)
	}
}

func TestValidate(t *testing.T) {
	tr, err := trace.Generate(trace.DefaultGenerate(3))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []Config{
		{}, {Workers: 1, Policy: "near"}, {Workers: 1, LoraShare: 1.1}, {Workers: 1, SaltShare: math.NaN()}, {Workers: 1, Salts: -1},
	} {
		if _, err := New(tr, c); !errors.Is(err, ErrConfig) {
			t.Errorf("%+v: error %v", c, err)
		}
	}
}

func TestRecorder(t *testing.T) {
	var r Recorder
	for i := range 50 {
		r.Issue(i)
	}
	a, b := r.Sample(10, 7), r.Sample(10, 7)
	if !slices.Equal(a, b) || len(a) != 10 || r.Len() != 50 {
		t.Errorf("samples %v and %v of %d", a, b, r.Len())
	}
	slices.Sort(a)
	if len(slices.Compact(a)) != 10 {
		t.Errorf("a sample repeats requests: %v", a)
	}
	if n := len(r.Sample(100, 7)); n != 50 {
		t.Errorf("a sample of 100 has %d of 50", n)
	}
}
