package bench

import (
	"encoding/json"
	"math"
	"testing"
)

func TestPercentileIsNearestRank(t *testing.T) {
	hundred := make([]uint32, 100)
	for i := range hundred {
		hundred[i] = uint32(i + 1)
	}
	for _, c := range []struct {
		sorted []uint32
		p      float64
		want   uint32
	}{
		{nil, 50, 0},
		{[]uint32{7}, 0, 7}, {[]uint32{7}, 50, 7}, {[]uint32{7}, 100, 7},
		{[]uint32{1, 2}, 50, 1}, {[]uint32{1, 2}, 50.1, 2},
		{hundred, 50, 50}, {hundred, 99, 99}, {hundred, 99.1, 100}, {hundred, 100, 100}, {hundred, 1, 1},
	} {
		if got := percentile(c.sorted, c.p); got != c.want {
			t.Errorf("p%v of %d values: %d, want %d", c.p, len(c.sorted), got, c.want)
		}
	}
	got := tickClock{nsPerTick: 0.5}.percentiles([]uint32{40, 10, 30, 20}, 50, 99)
	if got[0] != 10 || got[1] != 20 {
		t.Errorf("percentiles %v, want [10 20]", got)
	}
}

func TestSpread(t *testing.T) {
	runs := []float64{5, 1, 3}
	if s := NewSpread(runs); s.Median != 3 || s.Min != 1 || s.Max != 5 || runs[0] != 5 {
		t.Errorf("%+v of %v", s, runs)
	}
	if s := NewSpread([]float64{4, 1, 2, 9}); s.Median != 3 {
		t.Errorf("median of four: %v", s.Median)
	}
	if s := NewSpread(nil); !math.IsNaN(s.Median) {
		t.Errorf("median of nothing: %v", s.Median)
	}
}

func TestHexInJSON(t *testing.T) {
	raw, err := json.Marshal(Hex(0x12))
	if err != nil || string(raw) != `"0x0000000000000012"` {
		t.Fatalf("%s, %v", raw, err)
	}
	var h Hex
	if err := json.Unmarshal([]byte(`"0xffcb5dfcc0a9d089"`), &h); err != nil || h != 0xffcb5dfcc0a9d089 {
		t.Errorf("%#x, %v", uint64(h), err)
	}
	if json.Unmarshal([]byte(`"seven"`), &h) == nil {
		t.Error("a word is no number")
	}
}

func TestVerdict(t *testing.T) {
	more := Measure{HigherIsBetter: true, AtLeast: 30, Aim: 45}
	less := Measure{AtLeast: 4, Aim: 2}
	for _, c := range []struct {
		m    Measure
		v    float64
		want string
	}{
		{more, 45, VerdictAim}, {more, 44.9, VerdictMet}, {more, 30, VerdictMet}, {more, 29.9, VerdictMissed},
		{less, 2, VerdictAim}, {less, 2.1, VerdictMet}, {less, 4, VerdictMet}, {less, 4.1, VerdictMissed},
		{Measure{}, 1, VerdictNone}, {more, math.NaN(), VerdictNone},
		{Measure{AtLeast: 80}, 79, VerdictMet}, {Measure{AtLeast: 80}, 81, VerdictMissed},
	} {
		if got := c.m.Verdict(c.v); got != c.want {
			t.Errorf("%v of %+v: %s, want %s", c.v, c.m, got, c.want)
		}
	}
}

func TestTickClockAgreesWithTheCPUClock(t *testing.T) {
	c := newTickClock()
	from, cpu := ticks(), threadCPUOf(func() {
		for x := uint64(1); x != 0 && x < 1<<24; x++ {
			x += x & 1 >> 63
		}
	})
	wall := float64(ticks()-from) * c.nsPerTick
	// The thread may wait for a core, it cannot have run for longer than has passed.
	if wall < 0.9*float64(cpu) || wall <= 0 {
		t.Errorf("%v ns by ticks, %v of CPU", wall, cpu)
	}
}
