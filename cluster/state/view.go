package state

import (
	"cmp"
	"maps"
	"slices"

	"github.com/kvcluster/kvcluster/shard/catalog"
)

// View is an immutable picture of the state at one log index: the map index of a
// layout.
type View struct {
	Index   uint64
	Cluster Founding
	Catalog *catalog.View
	Members []Member // ordered by name
	// Owners by partition, ordered by name.
	Owners [][]Owner
	// Assignments by source.
	Assignments map[uint64]Assignment
	// Versions by member: of its assignments.
	Versions map[string]uint64
	Jobs     []Job // ordered by id
	// ToPurge has, for every member, retired slots that it has yet to purge.
	ToPurge map[string][]catalog.Retired
	// Removed are the processes of members that were removed, the latest last.
	Removed []Removal
}

// WasRemoved reports whether a process was a member and has been removed since.
func (v *View) WasRemoved(serverID string, boot uint64) bool {
	return slices.Contains(v.Removed, Removal{serverID, boot})
}

// Member returns a member by name.
func (v *View) Member(name string) (Member, bool) {
	i, ok := slices.BinarySearchFunc(v.Members, name, func(m Member, n string) int {
		switch {
		case m.Name < n:
			return -1
		case m.Name > n:
			return 1
		}
		return 0
	})
	if !ok {
		return Member{}, false
	}
	return v.Members[i], true
}

// Ready reports whether the log calls name a complete owner of the partition under its
// present boot id (rule Q4).
func (v *View) Ready(partition uint32, name string) bool {
	m, ok := v.Member(name)
	if !ok || int(partition) >= len(v.Owners) {
		return false
	}
	return slices.Contains(v.Owners[partition], Owner{Name: name, Boot: m.Boot})
}

// Receivers returns who gets the frames of a partition: its owners, and the targets of
// jobs that are filling new copies. Ordered by name, each once.
func (v *View) Receivers(partition uint32) []string {
	var out []string
	for _, o := range v.Owners[partition] {
		out = append(out, o.Name)
	}
	for _, j := range v.Jobs {
		for _, m := range j.Moves {
			if m.Partition == partition && m.To != "" && !slices.Contains(out, m.To) {
				out = append(out, m.To)
			}
		}
	}
	slices.Sort(out)
	return out
}

// View returns the present picture; the same pointer until the next Apply.
func (s *State) View() *View {
	if s.view != nil {
		return s.view
	}
	v := &View{
		Index: s.index, Cluster: s.cluster, Catalog: s.catalog.View(),
		Owners: make([][]Owner, len(s.owners)), Assignments: maps.Clone(s.assign), Versions: maps.Clone(s.version),
		ToPurge: map[string][]catalog.Retired{}, Removed: slices.Clone(s.removed),
	}
	for _, name := range slices.Sorted(maps.Keys(s.members)) {
		v.Members = append(v.Members, *s.members[name])
	}
	for p, o := range s.owners {
		v.Owners[p] = slices.Clone(o)
	}
	for _, id := range slices.Sorted(maps.Keys(s.jobs)) {
		j := *s.jobs[id]
		j.Moves, j.Boots, j.Waiting = slices.Clone(j.Moves), maps.Clone(j.Boots), maps.Clone(j.Waiting)
		v.Jobs = append(v.Jobs, j)
	}
	for r, waiting := range s.purges {
		for name := range waiting {
			v.ToPurge[name] = append(v.ToPurge[name], r)
		}
	}
	for _, rs := range v.ToPurge {
		slices.SortFunc(rs, func(a, b catalog.Retired) int { return cmp.Compare(a.Life, b.Life) })
	}
	s.view = v
	return v
}
