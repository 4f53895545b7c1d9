package state

import (
	"fmt"
	"slices"
)

// Job is a layout change in progress: copies of partitions are being filled at new
// owners while the old ones stay complete, current and alone readable.
type Job struct {
	ID    uint64 // log index of its begin
	Moves []Move
	// Boots are the boot ids of the targets when the job began.
	Boots map[string]uint64
	// Waiting are the ingest nodes that have not reported.
	Waiting map[string]bool
}

// Move is one new copy, and the owner that it replaces.
type Move struct {
	Partition uint32
	To        string // "" = no new copy: Drop alone goes, others hold the partition
	Drop      string // "" = a further copy, or a restarted owner that is filled again
}

func (j *Job) touches(member string) bool {
	return slices.ContainsFunc(j.Moves, func(m Move) bool { return m.To == member })
}

// begin starts a job. Without sources in the cluster it commits at once: there is
// nothing to copy.
func (s *State) begin(moves []Move) (*Job, error) {
	if len(moves) == 0 {
		return nil, fmt.Errorf("%w: a layout change without moves", ErrRefused)
	}
	j := &Job{ID: s.index, Moves: moves, Boots: map[string]uint64{}, Waiting: map[string]bool{}}
	for _, m := range moves {
		if err := s.checkMove(m); err != nil {
			return nil, err
		}
		if m.To != "" {
			j.Boots[m.To] = s.members[m.To].Boot
		}
	}
	for _, a := range s.assign {
		j.Waiting[a.Node] = true
	}
	s.jobs[j.ID] = j
	s.settleJobs()
	return j, nil
}

func (s *State) checkMove(m Move) error {
	if int(m.Partition) >= len(s.owners) {
		return fmt.Errorf("%w: partition %d of %d", ErrUnknown, m.Partition, len(s.owners))
	}
	owners := s.owners[m.Partition]
	if m.To == "" {
		if err := s.checkDrop(m); err != nil {
			return err
		}
	} else if to := s.members[m.To]; to == nil {
		return fmt.Errorf("%w: member %s", ErrUnknown, m.To)
	} else if to.Phase != Active {
		return fmt.Errorf("%w: %s is leaving", ErrRefused, m.To)
	} else if i := slices.IndexFunc(owners, func(o Owner) bool { return o.Name == m.To }); i >= 0 && owners[i].Boot == to.Boot {
		return fmt.Errorf("%w: %s owns partition %d already", ErrRefused, m.To, m.Partition)
	}
	if m.Drop != "" && !slices.ContainsFunc(owners, func(o Owner) bool { return o.Name == m.Drop }) {
		return fmt.Errorf("%w: %s does not own partition %d", ErrRefused, m.Drop, m.Partition)
	}
	for _, j := range s.jobs {
		if slices.ContainsFunc(j.Moves, func(o Move) bool { return o.Partition == m.Partition }) {
			return fmt.Errorf("%w: partition %d is part of change %d already", ErrRefused, m.Partition, j.ID)
		}
	}
	return nil
}

// checkDrop refuses to drop the last owner that may be read.
func (s *State) checkDrop(m Move) error {
	for _, o := range s.owners[m.Partition] {
		if other := s.members[o.Name]; o.Name != m.Drop && other != nil && other.Boot == o.Boot {
			return nil
		}
	}
	return fmt.Errorf("%w: %s is the last complete owner of partition %d", ErrRefused, m.Drop, m.Partition)
}

// report takes note that an ingest node has filled the targets of a job for all sources
// that it had at version. A report for older assignments or older processes does not
// count.
func (s *State) report(job uint64, node string, version uint64, boots map[string]uint64) error {
	j := s.jobs[job]
	if j == nil {
		return fmt.Errorf("%w: change %d", ErrUnknown, job)
	}
	if s.version[node] != version {
		return fmt.Errorf("%w: the assignments of %s have changed since (%d, now %d)", ErrRefused, node, version, s.version[node])
	}
	for name, boot := range j.Boots {
		if boots[name] != boot {
			return fmt.Errorf("%w: %s was filled under another boot id", ErrRefused, name)
		}
	}
	delete(j.Waiting, node)
	s.settleJobs()
	return nil
}

// excuse ends the waiting of a job for a node that is dead but keeps sources, since
// their engines connect to it. Copies of their slots cannot be read while it is gone,
// and when it comes back it resyncs them wherever they are missing.
func (s *State) excuse(job uint64, node string) error {
	j := s.jobs[job]
	if j == nil {
		return fmt.Errorf("%w: change %d", ErrUnknown, job)
	}
	delete(j.Waiting, node)
	s.settleJobs()
	return nil
}

// settleJobs commits the jobs that nobody has to report for any more. Nodes that read
// nothing are not waited for: their sources have gone to others, who are. A source that
// nobody reads holds every job up: its next reader has to be waited for, and what an
// owner would drop meanwhile may be the only copy.
func (s *State) settleJobs() {
	if len(s.jobs) == 0 {
		return
	}
	readers, homeless := map[string]bool{}, false
	for _, src := range s.catalog.View().Sources() {
		a, ok := s.assign[src.ID]
		readers[a.Node] = true
		homeless = homeless || !ok
	}
	for _, j := range s.jobs { // they touch disjoint partitions: the order does not matter
		for node := range j.Waiting {
			if !readers[node] {
				delete(j.Waiting, node)
			}
		}
		if len(j.Waiting) == 0 && !homeless {
			s.commit(j)
		}
	}
}

func (s *State) commit(j *Job) {
	for _, m := range j.Moves {
		owners := slices.DeleteFunc(slices.Clone(s.owners[m.Partition]), func(o Owner) bool { return o.Name == m.To || o.Name == m.Drop })
		if m.To != "" {
			owners = append(owners, Owner{Name: m.To, Boot: j.Boots[m.To]})
		}
		s.owners[m.Partition] = sortedOwners(owners)
	}
	delete(s.jobs, j.ID)
}

// abort ends a job. Nothing is lost: the old owners never stopped being current.
func (s *State) abort(job uint64) error {
	if s.jobs[job] == nil {
		return fmt.Errorf("%w: change %d", ErrUnknown, job)
	}
	delete(s.jobs, job)
	return nil
}

func (s *State) abortJobs(which func(*Job) bool) {
	for id, j := range s.jobs {
		if which(j) {
			delete(s.jobs, id)
		}
	}
}

// reopenReports puts a node back among those that every job waits for (rule M3).
func (s *State) reopenReports(node string) {
	reads := false
	for _, a := range s.assign {
		reads = reads || a.Node == node
	}
	for _, j := range s.jobs {
		if reads {
			j.Waiting[node] = true
		}
	}
}
