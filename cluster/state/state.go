package state

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/kvcluster/kvcluster/shard/catalog"
)

// Errors in results. They are part of the replicated outcome, so they travel as codes.
var (
	// ErrRefused: the command contradicts the state.
	ErrRefused = errors.New("refused")
	// ErrUnknown: the command names something that is not there.
	ErrUnknown = errors.New("unknown")
)

// State is the whole replicated state. It belongs to the goroutine that applies the
// log; View gives everybody else an immutable picture.
type State struct {
	index   uint64
	cluster Founding
	members map[string]*Member
	catalog *catalog.Catalog
	owners  [][]Owner // by partition, ordered by name
	assign  map[uint64]Assignment
	// begun are the sources that somebody has read, or could have.
	begun map[uint64]bool
	// version counts the changes of each member's assignments (rule M3).
	version map[string]uint64
	jobs    map[uint64]*Job
	purges  map[catalog.Retired]map[string]bool // retired slot -> members that have yet to purge it
	removed []Removal                           // oldest first
	done    results
	view    *View
}

// Founding is fixed by the first entry of a cluster.
type Founding struct {
	ClusterID  string
	Partitions uint32
	Replicas   int
}

// Phase is where a member is in its life.
type Phase string

// The phases of a member.
const (
	Active  Phase = "active"
	Leaving Phase = "leaving" // gives its partitions and sources away, then is removed
)

// Member is a node of the cluster.
type Member struct {
	Name     string
	ServerID string // Raft server id: stable for a data folder
	Raft     string // addresses, host:port
	Link     string
	HTTP     string
	Zone     string
	Weight   float64
	Version  string // software version
	Boot     uint64 // boot id of the process that introduced itself last
	Phase    Phase
}

// Removal remembers the process of a member that was removed: it does not come in
// again by itself. Another process of the same data folder may.
type Removal struct {
	ServerID string
	Boot     uint64
}

// keepRemovals bounds the memory of removals. A process that was removed ends as soon
// as it hears of it, long before so many others are.
const keepRemovals = 1024

// Owner is a node that holds a partition.
type Owner struct {
	Name string
	// Boot is the boot id under which this copy is complete; it may be read only while
	// it is the member's present one.
	Boot uint64
}

// Assignment says which node reads a source.
type Assignment struct {
	Node string
	// Tenure is the log index of the entry that made it; the first reader of a source has
	// the index of the source itself.
	Tenure uint64
}

// New returns the state before the first entry.
func New() *State {
	return &State{
		members: map[string]*Member{}, catalog: catalog.New(), assign: map[uint64]Assignment{}, begun: map[uint64]bool{},
		version: map[string]uint64{}, jobs: map[uint64]*Job{}, purges: map[catalog.Retired]map[string]bool{},
	}
}

// Index returns the log index of the last entry applied.
func (s *State) Index() uint64 { return s.index }

// founded refuses commands on a state without its first entry.
func (s *State) founded() error {
	if s.cluster.ClusterID == "" {
		return fmt.Errorf("%w: the cluster has not been founded", ErrRefused)
	}
	return nil
}

func (s *State) found(f Founding) error {
	if s.cluster.ClusterID != "" {
		return fmt.Errorf("%w: the cluster %s exists already", ErrRefused, s.cluster.ClusterID)
	}
	if f.ClusterID == "" || f.Partitions == 0 || f.Replicas < 1 {
		return fmt.Errorf("%w: a cluster needs an id, at least one partition and one replica", ErrRefused)
	}
	s.cluster = f
	s.owners = make([][]Owner, f.Partitions)
	return nil
}

// introduce adds a member or takes note of its new process.
func (s *State) introduce(m Member) error {
	if m.Name == "" || m.ServerID == "" || m.Boot == 0 {
		return fmt.Errorf("%w: a member needs a name, a server id and a boot id", ErrRefused)
	}
	old := s.members[m.Name]
	if old != nil && old.ServerID != m.ServerID {
		return fmt.Errorf("%w: the name %s belongs to another node (%s); give this node another --name, or remove the other one first", ErrRefused, m.Name, old.ServerID)
	}
	for _, o := range s.members {
		if o.Name != m.Name && o.ServerID == m.ServerID {
			return fmt.Errorf("%w: this data folder belongs to member %s, not to %s", ErrRefused, o.Name, m.Name)
		}
	}
	if slices.Contains(s.removed, Removal{m.ServerID, m.Boot}) {
		return fmt.Errorf("%w: the process of member %s was removed from the cluster; start it again to join with an empty index", ErrRefused, m.Name)
	}
	m.Phase = Active
	if old == nil || old.Boot != m.Boot {
		// The process does not know which lives have ended, and who has not heard of that
		// either may send it their content: it purges them too.
		for _, waiting := range s.purges {
			waiting[m.Name] = true
		}
	}
	if old == nil {
		s.members[m.Name] = &m
		s.removed = slices.DeleteFunc(s.removed, func(r Removal) bool { return r.ServerID == m.ServerID })
		return nil
	}
	m.Phase = old.Phase
	rebooted := old.Boot != m.Boot
	*old = m
	if rebooted {
		s.rebooted(m.Name)
	}
	return nil
}

// rebooted gives the sources of a restarted node new tenures (rule T1) and aborts jobs
// that were filling the old process. What it owned stays with it, not ready, until a
// job fills it.
func (s *State) rebooted(name string) {
	for id, a := range s.assign {
		if a.Node == name {
			s.assign[id] = Assignment{Node: name, Tenure: s.index}
			s.version[name] = s.index
			s.catalog.TakenOver(s.index, id)
		}
	}
	s.abortJobs(func(j *Job) bool { return j.touches(name) })
	s.reopenReports(name)
}

// leave marks a member; the leader then gives its partitions and sources away.
func (s *State) leave(name string) error {
	m := s.members[name]
	if m == nil {
		return fmt.Errorf("%w: member %s", ErrUnknown, name)
	}
	if s.lastActive(name) {
		return fmt.Errorf("%w: %s is the last member that stays; nobody could take over what it holds", ErrRefused, name)
	}
	m.Phase = Leaving
	s.abortJobs(func(j *Job) bool { return j.touches(name) }) // it is not filled any more
	return nil
}

// lastActive reports whether no other member stays.
func (s *State) lastActive(name string) bool {
	for _, m := range s.members {
		if m.Name != name && m.Phase == Active {
			return false
		}
	}
	return true
}

// remove forgets a member: it is gone for good. A node that comes back under the same
// name starts empty. boots are the processes of it that are meant, the one that the log
// knows and one that is seen and was not introduced yet: none of them comes in again. A
// member that has started again since is not removed.
func (s *State) remove(name string, boots []uint64) error {
	m := s.members[name]
	if m == nil {
		return fmt.Errorf("%w: member %s", ErrUnknown, name)
	}
	if len(boots) > 0 && !slices.Contains(boots, m.Boot) {
		return fmt.Errorf("%w: %s has started again since; remove it once more if that is still what you want", ErrRefused, name)
	}
	if s.lastActive(name) {
		return fmt.Errorf("%w: %s is the last member that stays", ErrRefused, name)
	}
	delete(s.members, name)
	s.removed = append(s.removed, Removal{m.ServerID, m.Boot})
	for _, b := range boots {
		if b != m.Boot {
			s.removed = append(s.removed, Removal{m.ServerID, b})
		}
	}
	s.removed = s.removed[max(0, len(s.removed)-keepRemovals):]
	s.abortJobs(func(j *Job) bool { return j.touches(name) })
	for p := range s.owners {
		s.owners[p] = slices.DeleteFunc(s.owners[p], func(o Owner) bool { return o.Name == name })
	}
	for id, a := range s.assign {
		if a.Node == name {
			delete(s.assign, id)
		}
	}
	delete(s.version, name)
	s.settleJobs()
	for r, waiting := range s.purges {
		delete(waiting, name)
		s.purgedIfAll(r)
	}
	return nil
}

// assignSource gives a source to an ingest node; the entry's index is the tenure.
func (s *State) assignSource(a Assign) error {
	source, node := a.Source, a.Node
	if s.members[node] == nil {
		return fmt.Errorf("%w: member %s", ErrUnknown, node)
	}
	sources := s.catalog.View().Sources()
	i := slices.IndexFunc(sources, func(c catalog.Source) bool { return c.ID == source })
	if i < 0 {
		return fmt.Errorf("%w: source %d", ErrUnknown, source)
	}
	old, assigned := s.assign[source]
	if assigned && old.Node == node && (a.Over == 0 || a.Over != old.Tenure) {
		return nil
	}
	if a.Lost != (catalog.Retired{}) && !slices.ContainsFunc(sources[i].Ranks, func(r catalog.Rank) bool {
		return a.Lost == catalog.Retired{Group: sources[i].Group.ID, Slot: r.Slot, Life: r.Life}
	}) {
		return nil
	}
	if assigned && old.Node != node && catalog.Binds(sources[i].Endpoint) {
		return fmt.Errorf("%w: the engines of source %d connect to %s; it stays there until that member is removed", ErrRefused, source, old.Node)
	}
	s.assign[source] = Assignment{Node: node, Tenure: s.index}
	if !s.begun[source] {
		// Nobody has written anything of its lives, so its first reader continues them: the
		// tenure is as old as the source.
		s.assign[source] = Assignment{Node: node, Tenure: source}
		s.begun[source] = true
	} else {
		s.catalog.TakenOver(s.index, source)
	}
	s.version[node] = s.index
	if assigned && old.Node != node {
		s.version[old.Node] = s.index
	}
	s.reopenReports(node) // before the old node is let go: the job waits for one of them
	s.settleJobs()
	return nil
}

// retire notes slots that every member has to purge before their numbers come back
// (rule G2).
func (s *State) retire(rs ...catalog.Retired) {
	for _, r := range rs {
		if r == (catalog.Retired{}) {
			continue
		}
		waiting := map[string]bool{}
		for name := range s.members {
			waiting[name] = true
		}
		s.purges[r] = waiting
		s.purgedIfAll(r)
	}
}

func (s *State) purged(p Purged) {
	if m := s.members[p.Member]; m != nil && p.Boot != 0 && p.Boot != m.Boot {
		return // an earlier process was meant
	}
	if waiting := s.purges[p.Slot]; waiting != nil {
		delete(waiting, p.Member)
		s.purgedIfAll(p.Slot)
	}
}

func (s *State) purgedIfAll(r catalog.Retired) {
	if len(s.purges[r]) == 0 {
		delete(s.purges, r)
		s.catalog.Purged(s.index, r)
	}
}

// dropStaleAssignments forgets assignments of sources that the catalog no longer has.
func (s *State) dropStaleAssignments() {
	live := map[uint64]bool{}
	for _, src := range s.catalog.View().Sources() {
		live[src.ID] = true
	}
	for id, a := range s.assign {
		if !live[id] {
			delete(s.assign, id)
			s.version[a.Node] = s.index
		}
	}
	s.settleJobs()
	maps.DeleteFunc(s.begun, func(id uint64, _ bool) bool { return !live[id] })
}

func sortedOwners(owners []Owner) []Owner {
	slices.SortFunc(owners, func(a, b Owner) int { return cmp.Compare(a.Name, b.Name) })
	return owners
}
