package protocol

import (
	"strings"
	"testing"
)

// ring counts from 0 to n-1 by ones and by twos; one number is wrong.
type ring struct{ n, wrong int }

func (r ring) Start() int { return 0 }

func (r ring) Steps(s int, to func(string, int)) {
	to("one", (s+1)%r.n)
	to("two", (s+2)%r.n)
}

func (r ring) Check(s int) Fault {
	if s == r.wrong {
		return Over
	}
	return None
}

func TestExplore(t *testing.T) {
	r, err := Explore[int](ring{100, -1}, 100)
	if err != nil || r.States != 100 || r.Fault != None || len(r.Trace) != 0 {
		t.Errorf("all of 100 states: %v, %v", r, err)
	}
	if r, err = Explore[int](ring{100, -1}, 99); err == nil || r.Fault != None {
		t.Errorf("100 states in a bound of 99: %v, %v", r, err)
	}
	r, err = Explore[int](ring{100, 9}, 100)
	if err != nil || r.Fault != Over || len(r.Trace) != 5 {
		t.Errorf("the shortest way to 9 has 5 steps: %v, %v", r, err)
	}
	sum := 0
	for _, step := range r.Trace {
		sum += map[string]int{"one": 1, "two": 2}[step]
	}
	if sum != 9 || !strings.Contains(r.String(), "over after 5 steps") {
		t.Errorf("the trace does not lead there: %v", r)
	}
}

// TestEnvelope holds the judge itself to worked cases.
func TestEnvelope(t *testing.T) {
	for _, c := range []struct {
		deeds      string // s stores, r removes, o others
		acked, got uint8
		want       Fault
	}{
		{"", 0, 0, None},
		{"", 0, 1, Over},
		{"s", 0, 1, None},
		{"s", 0, 0, None}, // not acknowledged: late is allowed
		{"s", 1, 0, Under},
		{"sr", 1, 1, None}, // the removal is not acknowledged
		{"sr", 1, 0, None}, // but under way
		{"sr", 2, 1, Over},
		{"sr", 2, 0, None},
		{"srs", 2, 1, None},
		{"srs", 2, 0, None},
		{"srs", 3, 0, Under},
		{"so", 2, 0, Under},
		{"or", 2, 1, Over},
	} {
		var s stream
		for _, d := range c.deeds {
			s = s.publish(uint8(strings.IndexRune("rso", d)))
		}
		if got := (query{answered, c.acked, c.got}).judge(s); got != c.want {
			t.Errorf("%q, %d acknowledged, answer %d: %q, want %q", c.deeds, c.acked, c.got, got, c.want)
		}
	}
	// A message keeps what it says.
	m := resyncMessage(1, 1, 2, 3)
	if m.kind() != kindResync || m.tenure() != 1 || m.value() != 1 || m.token() != 2 || m.cursor() != 3 {
		t.Errorf("resync message %08b", m)
	}
	if m := opMessage(1, 2); m.kind() != kindOp || m.tenure() != 1 || m.index() != 2 {
		t.Errorf("op message %08b", m)
	}
	if m := fenceMessage(1, 2); m.kind() != kindFence || m.tenure() != 1 || m.token() != 2 {
		t.Errorf("fence message %08b", m)
	}
}
