package trace

import (
	"errors"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

func generate(t *testing.T, c GenerateConfig) *Trace {
	t.Helper()
	tr, err := Generate(c)
	if err != nil {
		t.Fatal(err)
	}
	return tr
}

func TestGenerateIsDeterministic(t *testing.T) {
	c := DefaultGenerate(2000)
	a, b := generate(t, c), generate(t, c)
	if !reflect.DeepEqual(a, b) {
		t.Error("equal configurations give different traces")
	}
	c.Seed++
	if reflect.DeepEqual(a, generate(t, c)) {
		t.Error("another seed gives the same trace")
	}
	// A longer trace begins with the shorter one.
	c.Seed--
	c.Requests = 3000
	if !reflect.DeepEqual(a.Requests, generate(t, c).Requests[:2000]) {
		t.Error("a longer trace begins differently")
	}
}

// The default shape is that of the public conversation trace, within a third.
func TestGenerateShape(t *testing.T) {
	s := generate(t, DefaultGenerate(12031)).Summarise()
	near := func(what string, got, want float64) {
		if math.Abs(got-want) > want/3 {
			t.Errorf("%s is %.3g, the public trace has %.3g", what, got, want)
		}
	}
	near("ids", float64(s.IDs), 288500)
	near("distinct ids", float64(s.Distinct), 182790)
	near("longest", float64(s.Longest), 247)
	near("span", s.Span.Seconds(), 3537)
	near("input mean", s.Input.Mean, 12035)
	near("input median", float64(s.Input.P50), 6909)
	near("input p99", float64(s.Input.P99), 85399)
	near("output mean", s.Output.Mean, 343)
	near("reuse", s.Reuse, 0.366)
	near("returning", s.Returning, 0.387)
	if s.FirstIDs != 1 {
		t.Errorf("%d first ids, want the common one", s.FirstIDs)
	}
	if text := s.String(); !strings.Contains(text, "requests               12031\n") {
		t.Errorf("summary prints as\n%s", text)
	}
}

// Ids mean what they mean in the public files: an id stands at one place below one
// path, covers the input exactly, and a later turn repeats every complete block.
func TestGenerateInvariants(t *testing.T) {
	c := DefaultGenerate(3000)
	c.TokensPerID, c.Common = 64, 3
	tr := generate(t, c)
	type place struct{ before, depth uint32 }
	where := map[uint32]place{}
	previous := map[uint32]Request{}
	last := time.Duration(0)
	multi := 0
	for i, r := range tr.Requests {
		if r.Time < last {
			t.Fatalf("request %d comes before its predecessor", i)
		}
		last = r.Time
		if want := (int(r.Input) + 63) / 64; len(r.IDs) != want {
			t.Fatalf("request %d has %d ids for %d tokens", i, len(r.IDs), r.Input)
		}
		for d, id := range r.IDs {
			p := place{depth: uint32(d), before: math.MaxUint32}
			if d > 0 {
				p.before = r.IDs[d-1]
			}
			if was, ok := where[id]; ok && was != p {
				t.Fatalf("request %d: id %d stands at %v and at %v", i, id, was, p)
			}
			where[id] = p
		}
		if r.Turn > 0 {
			multi++
			q := previous[r.Session]
			full := int(q.Input) / 64
			if q.Turn+1 != r.Turn || r.Input <= q.Input {
				t.Fatalf("request %d: turn %d of %d tokens follows turn %d of %d", i, r.Turn, r.Input, q.Turn, q.Input)
			}
			if !slices.Equal(q.IDs[:full], r.IDs[:full]) {
				t.Fatalf("request %d does not continue its session: %v after %v", i, r.IDs, q.IDs)
			}
		}
		previous[r.Session] = r
	}
	if multi < 300 {
		t.Errorf("only %d of 3000 requests continue a session", multi)
	}
}

// Arrivals of sessions are Poisson: gaps have a standard deviation close to their mean.
func TestGenerateArrivals(t *testing.T) {
	c := DefaultGenerate(5000)
	c.TurnsMean, c.Rate = 1, 10
	tr := generate(t, c)
	sum, squares := 0.0, 0.0
	for i := 1; i < len(tr.Requests); i++ {
		gap := (tr.Requests[i].Time - tr.Requests[i-1].Time).Seconds()
		sum += gap
		squares += gap * gap
	}
	n := float64(len(tr.Requests) - 1)
	mean := sum / n
	deviation := math.Sqrt(squares/n - mean*mean)
	if math.Abs(mean-0.1) > 0.005 || math.Abs(deviation-mean) > 0.01 {
		t.Errorf("gaps have mean %.4f and deviation %.4f, want 0.1 and 0.1", mean, deviation)
	}
}

func TestGenerateValidates(t *testing.T) {
	for field, set := range map[string]func(*GenerateConfig){
		"requests":       func(c *GenerateConfig) { c.Requests = 0 },
		"rate":           func(c *GenerateConfig) { c.Rate = math.NaN() },
		"system prompts": func(c *GenerateConfig) { c.SystemPrompts = 0 },
		"system skew":    func(c *GenerateConfig) { c.SystemSkew = -1 },
		"common":         func(c *GenerateConfig) { c.Common = -1 },
		"turns mean":     func(c *GenerateConfig) { c.TurnsMean = 0.5 },
		"think":          func(c *GenerateConfig) { c.Think = -1 },
		"tokens per id":  func(c *GenerateConfig) { c.TokensPerID = 0 },
		"max tokens":     func(c *GenerateConfig) { c.MaxTokens = 0 },
		"user tokens":    func(c *GenerateConfig) { c.UserTokens.Median = 0 },
		"output tokens":  func(c *GenerateConfig) { c.OutputTokens.Sigma = -1 },
	} {
		c := DefaultGenerate(10)
		set(&c)
		if _, err := Generate(c); !errors.Is(err, ErrRange) || !strings.Contains(err.Error(), field) {
			t.Errorf("%s: error %v", field, err)
		}
	}
}
