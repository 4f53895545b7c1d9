package gossip

import "sync/atomic"

type stats struct {
	changes, greetings, refused, rejoins, rejoinFailed atomic.Uint64
}

// Stats are counters since New and gauges of now, for metrics.
type Stats struct {
	Alive, Known int    // nodes, this one included; Known counts the dead too
	Health       int    // see Gossip.Health
	Conflicts    int    // see Gossip.Conflicts
	Changes      uint64 // bursts that were told
	Greetings    uint64 // that were answered
	Refused      uint64 // greetings and news of nodes that do not belong here
	Rejoins      uint64 // nodes that were reached again by Run
	RejoinFailed uint64 // attempts of Run that reached nobody
}

// Stats returns what there is to measure.
func (g *Gossip) Stats() Stats {
	s := Stats{Health: g.Health(), Conflicts: len(g.Conflicts()),
		Changes: g.stats.changes.Load(), Greetings: g.stats.greetings.Load(), Refused: g.stats.refused.Load(),
		Rejoins: g.stats.rejoins.Load(), RejoinFailed: g.stats.rejoinFailed.Load()}
	for _, p := range g.Peers() {
		s.Known++
		if p.Alive {
			s.Alive++
		}
	}
	return s
}
