package search

import (
	"fmt"

	"github.com/kvcluster/kvcluster/cluster/state"
	"github.com/kvcluster/kvcluster/indexer"
)

// plan is what reads need of one view.
type plan struct {
	view     *state.View
	segments []segment // by partition
}

// segment is who may answer for a partition.
type segment struct {
	here   bool    // this process is a ready owner (rule Q4)
	others []*peer // the other ready owners
}

// plan returns the plan of the present view; the same pointer while the view is the same.
func (s *Search) plan() *plan {
	v := s.deps.View()
	if p := s.current.Load(); p != nil && p.view == v {
		return p
	}
	p := &plan{view: v, segments: make([]segment, len(v.Owners))}
	self, known := v.Member(s.cfg.Name)
	present := known && (self.Boot == s.cfg.Boot || s.cfg.broken.otherBoot)
	boots := make(map[string]uint64, len(v.Members))
	peers := make(map[string]*peer, len(v.Members))
	for _, m := range v.Members {
		boots[m.Name] = m.Boot
		peers[m.Name] = s.peer(m.Name)
	}
	for i, owners := range v.Owners {
		g := &p.segments[i]
		for _, o := range owners {
			switch ready := boots[o.Name] == o.Boot && o.Boot != 0; {
			case o.Name == s.cfg.Name:
				g.here = (ready || s.cfg.broken.anyOwner) && present
			case ready:
				g.others = append(g.others, peers[o.Name])
			}
		}
		g.here = g.here || s.cfg.broken.anyOwner
	}
	// Racing goroutines build the same; an older view that comes late is replaced by the
	// next call.
	s.current.Store(p)
	return p
}

// segment returns who may answer for a partition; nobody, when there is no such one.
func (p *plan) segment(id indexer.PartitionID) segment {
	if int(id) >= len(p.segments) {
		return segment{}
	}
	return p.segments[id]
}

// Reasons of Ready.
const (
	NotReadyLease   = "waiting_for_leader"
	NotReadyJoining = "joining"
	NotReadyFilling = "filling_partitions"
)

// Ready reports whether this node answers for its part of the index: it can prove that
// its map is current, and every partition that the log gave it is complete under this
// process's boot id. The reason is one of the constants and a detail.
func (s *Search) Ready() (ok bool, reason, detail string) {
	v := s.deps.View()
	self, known := v.Member(s.cfg.Name)
	if !known || self.Boot != s.cfg.Boot {
		return false, NotReadyJoining, "the cluster does not know this process yet"
	}
	if !s.lease.held() {
		return false, NotReadyLease, "no leader has confirmed the map of this node"
	}
	owned, open := 0, 0
	for _, owners := range v.Owners {
		for _, o := range owners {
			if o.Name != s.cfg.Name {
				continue
			}
			owned++
			if o.Boot != s.cfg.Boot {
				open++
			}
		}
	}
	switch {
	case open > 0:
		return false, NotReadyFilling, fmt.Sprintf("%d of %d partitions are not complete yet", open, owned)
	case owned == 0:
		return false, NotReadyJoining, "no partition is complete here yet"
	}
	return true, "", ""
}
