package control

import (
	"cmp"
	"slices"

	"github.com/kvcluster/kvcluster/cluster/raftlog"
)

// seat is a raft server as the choice of voters sees it.
type seat struct {
	id, name, zone string
	voter          bool
	self           bool // this leader
	alive          bool
	stays          bool // a member that does not leave
	fit            bool // stays and is not gone: it may vote
	ready          bool // alive, fit and caught up: it may get a vote
}

// wantedVoters is the largest odd number of voters for so many members that stay.
func wantedVoters(members int) int { return max(1, min(raftlog.MaxVoters, members-1+members%2)) }

// nextVoter returns the next change of the voters: the one that gets a vote, or the one
// that loses it; none when they are as they should be or nothing helps now. Applied
// again and again it comes to an end.
//
// staying is the number of members that stay, dead or alive: voters are not taken away
// because somebody is dead, only replaced. A voter that leaves loses its vote in any
// case. No step leaves less than a majority of the voters alive: it could not even be
// carried out, since a change of the voters is decided by the new ones.
func nextVoter(seats []seat, staying int) (promote, demote *seat) {
	want, voters := wantedVoters(staying), 0
	var unfit []*seat
	ready, leaving := 0, false
	for i := range seats {
		switch s := &seats[i]; {
		case s.voter:
			voters++
			if !s.fit && !s.self { // a leader that leaves gives the lead away first
				unfit = append(unfit, s)
				leaving = leaving || !s.stays
			}
		case s.ready:
			ready++
		}
	}
	// A leader that leaves keeps its vote until somebody else leads: one more for a while.
	if slices.ContainsFunc(seats, func(s seat) bool { return s.self && s.voter && !s.fit }) {
		want = min(want+1, raftlog.MaxVoters)
	}
	switch {
	case voters > want:
		return nil, worstVoter(seats)
	case len(unfit) > 0 && ready > 0 && voters < raftlog.MaxVoters:
		return bestCandidate(seats), nil // the other one goes in the next step
	case len(unfit) > 0 && ready > 0:
		return nil, worstVoter(seats)
	case leaving:
		return nil, worstVoter(seats)
	case voters < want && ready > 0 && (want%2 == 0 || ready >= 1+voters%2): // not to an even number and no further
		return bestCandidate(seats), nil
	}
	return nil, nil
}

// zoneVoters counts the fit voters of a zone; unknown zones are all different.
func zoneVoters(seats []seat, zone string) (n int) {
	for _, s := range seats {
		if zone != "" && s.voter && s.fit && s.zone == zone {
			n++
		}
	}
	return n
}

// bestCandidate is a ready server of the zone with the fewest voters.
func bestCandidate(seats []seat) *seat {
	return pick(seats, func(s seat) bool { return !s.voter && s.ready }, func(a, b seat) int {
		return cmp.Or(cmp.Compare(zoneVoters(seats, a.zone), zoneVoters(seats, b.zone)), cmp.Compare(a.name, b.name))
	})
}

// mayGo reports whether a majority of the voters is alive without that one.
func mayGo(seats []seat, without string) bool {
	voters, alive := 0, 0
	for _, s := range seats {
		if s.voter && s.id != without {
			voters++
			if s.alive {
				alive++
			}
		}
	}
	return alive > voters/2
}

// worstVoter is the voter to lose its vote: one that may not vote, then a dead one, then
// one of the fullest zone; never the leader itself, and nobody who is needed for a
// majority.
func worstVoter(seats []seat) *seat {
	rank := func(s seat) int {
		switch {
		case !s.fit && !s.alive:
			return 0
		case !s.fit:
			return 1
		case !s.alive:
			return 2
		}
		return 3
	}
	return pick(seats, func(s seat) bool { return s.voter && !s.self && mayGo(seats, s.id) }, func(a, b seat) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), -cmp.Compare(zoneVoters(seats, a.zone), zoneVoters(seats, b.zone)), -cmp.Compare(a.name, b.name))
	})
}

// successor is the voter that a leader gives the lead to: alive, and fit if there is one.
func successor(seats []seat) *seat {
	return pick(seats, func(s seat) bool { return s.voter && !s.self && s.alive && s.fit }, func(a, b seat) int { return cmp.Compare(a.name, b.name) })
}

func pick(seats []seat, may func(seat) bool, compare func(a, b seat) int) *seat {
	var best *seat
	for i := range seats {
		if may(seats[i]) && (best == nil || compare(seats[i], *best) < 0) {
			best = &seats[i]
		}
	}
	return best
}
