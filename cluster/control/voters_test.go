package control

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"github.com/kvcluster/kvcluster/cluster/raftlog"
)

func TestWantedVoters(t *testing.T) {
	for members, want := range []int{1, 1, 1, 3, 3, 5, 5, 5, 5} {
		if got := wantedVoters(members); got != want {
			t.Errorf("%d members: %d voters, want %d", members, got, want)
		}
	}
}

// seatsOf makes seats: a capital letter votes; L is the leader, X one that leaves, V and
// v are well, D and d dead, G and g gone for longer than the grace period, W leaves.
func seatsOf(spec string) (out []seat) {
	for i, r := range spec {
		s := seat{id: fmt.Sprint(i), name: fmt.Sprint("n", i), alive: true, stays: true, fit: true}
		switch r {
		case 'L':
			s.voter, s.self = true, true
		case 'X': // the leader, and it leaves
			s.voter, s.self, s.stays, s.fit = true, true, false, false
		case 'V':
			s.voter = true
		case 'D', 'd':
			s.voter, s.alive = r == 'D', false
		case 'G', 'g':
			s.voter, s.alive, s.fit = r == 'G', false, false
		case 'W': // leaves and votes
			s.voter, s.stays, s.fit = true, false, false
		}
		s.ready = s.alive && s.fit
		out = append(out, s)
	}
	return out
}

func staying(seats []seat) (n int) {
	for _, s := range seats {
		if s.stays {
			n++
		}
	}
	return n
}

func TestNextVoter(t *testing.T) {
	for _, c := range []struct{ seats, promote, demote string }{
		{"L", "", ""},
		{"Lv", "", ""}, // two members: one votes
		{"Lvv", "n1", ""},
		{"LVv", "n2", ""},
		{"LVV", "", ""},
		{"LVVv", "", ""},
		{"LVVvv", "n3", ""},
		{"LVVvd", "", ""}, // no even number
		{"LVVVVvvv", "", ""},
		{"LVD", "", ""},
		{"LVDv", "", ""},   // it may come back
		{"LVGv", "n3", ""}, // replaced first
		{"LVGV", "", "n2"}, // then let go
		{"LVVVGv", "", "n4"},
		{"LVVVv", "n4", ""},
		{"LVG", "", ""}, // nobody to replace it
		{"LV", "", "n1"},
		{"LVWv", "n3", ""},
		{"LVWV", "", "n2"},
		{"LVW", "", "n2"},
		{"LDW", "", "n1"}, // without n2 there would be no majority
		{"LW", "", "n1"},
		{"LVWd", "", "n2"}, // it leaves although nobody takes its place
		{"Xv", "n1", ""},   // somebody has to be able to lead
		{"XV", "", ""},
		{"XVVV", "", ""}, // until another leads
		{"XVVVVv", "", ""},
	} {
		seats := seatsOf(c.seats)
		p, d := nextVoter(seats, staying(seats))
		name := func(s *seat) string {
			if s == nil {
				return ""
			}
			return s.name
		}
		if name(p) != c.promote || name(d) != c.demote {
			t.Errorf("%s: promote %q, demote %q; want %q, %q", c.seats, name(p), name(d), c.promote, c.demote)
		}
	}
}

func TestVotersSpreadOverZones(t *testing.T) {
	seats := seatsOf("Lvvvvvvv")
	for i := range seats {
		seats[i].zone = string("aaaabbcc"[i])
	}
	count := map[string]int{}
	for {
		p, d := nextVoter(seats, len(seats))
		if d != nil {
			t.Fatalf("demotes %s", d.name)
		}
		if p == nil {
			break
		}
		p.voter = true
	}
	for _, s := range seats {
		if s.voter {
			count[s.zone]++
		}
	}
	if count["a"] != 2 || count["b"]+count["c"] != 3 || count["b"] == 0 || count["c"] == 0 {
		t.Errorf("voters by zone: %v", count)
	}
}

// From any state the steps come to an end, never exceed the bound, and never take the
// majority away.
func TestVoterStepsEnd(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		spec := rapid.SampledFrom([]string{"L", "X"}).Draw(t, "leader")
		voters := 1
		for range rapid.IntRange(0, 9).Draw(t, "others") {
			r := rapid.SampledFrom([]string{"V", "v", "D", "d", "G", "g", "W"}).Draw(t, "server")
			if r[0] < 'a' {
				if voters == raftlog.MaxVoters {
					continue
				}
				voters++
			}
			spec += r
		}
		seats := seatsOf(spec)
		for step := 0; ; step++ {
			if step > 20 {
				t.Fatalf("%s: no end", spec)
			}
			had := mayGo(seats, "")
			p, d := nextVoter(seats, staying(seats))
			switch {
			case p != nil && (p.voter || !p.ready), d != nil && (!d.voter || d.self):
				t.Fatalf("%s: promote %+v, demote %+v", spec, p, d)
			case p != nil:
				p.voter = true
			case d != nil:
				d.voter = false
			default:
				return
			}
			n := 0
			for _, s := range seats {
				if s.voter {
					n++
				}
			}
			if n > raftlog.MaxVoters || n == 0 {
				t.Fatalf("%s: %d voters", spec, n)
			}
			if had && !mayGo(seats, "") {
				t.Fatalf("%s: the majority is gone", spec)
			}
		}
	})
}
