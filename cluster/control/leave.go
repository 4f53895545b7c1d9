package control

import (
	"context"
	"fmt"
	"slices"

	"github.com/kvcluster/kvcluster/cluster/gossip"
	"github.com/kvcluster/kvcluster/cluster/state"
)

// Progress is how much a member that leaves has yet to give away.
type Progress struct {
	Partitions int // that it owns
	Sources    int // that it reads
}

// Leave asks the cluster to take over what a member holds and returns when it is no
// member any more. It may be called on any node and again; when ctx ends the leaving
// goes on. progress, if not nil, is called with every change, one call at a time. The
// last member that stays cannot leave.
func (c *Control) Leave(ctx context.Context, name string, progress func(Progress)) error {
	m, ok := c.View().Member(name)
	if !ok {
		return fmt.Errorf("leave: %w: %s", ErrNotMember, name)
	}
	r, err := c.Propose(ctx, state.Command{Leave: &name})
	if err == nil {
		err = r.Err()
	}
	if err != nil {
		return fmt.Errorf("leave: %w", err)
	}
	last := Progress{-1, -1}
	for {
		changed := c.changed()
		v := c.View()
		now, ok := v.Member(name)
		if !ok || now.ServerID != m.ServerID {
			return nil
		}
		if p := progressOf(v, name); p != last && progress != nil {
			last = p
			progress(p)
		}
		select {
		case <-changed:
		case <-c.removed:
			if name == c.cfg.Self.Name {
				return nil
			}
			return fmt.Errorf("leave of %s: %w", name, ErrRemoved)
		case <-ctx.Done():
			p := progressOf(v, name)
			return fmt.Errorf("leave of %s goes on, %d partitions and %d sources are left: %w", name, p.Partitions, p.Sources, ctx.Err())
		}
	}
}

func progressOf(v *state.View, name string) (p Progress) {
	for _, owners := range v.Owners {
		if slices.ContainsFunc(owners, func(o state.Owner) bool { return o.Name == name }) {
			p.Partitions++
		}
	}
	for _, a := range v.Assignments {
		if a.Node == name {
			p.Sources++
		}
	}
	return p
}

// Remove forgets a member that does not come back: its copies and sources go to others
// at once. A member that is alive is refused with ErrAlive unless force is set: what it
// alone holds is lost. Its process, if it still runs, ends when it hears of it and its
// vote is not needed; a voter that is alive is refused with ErrMajority while the log
// needs it. A member that has started again by the time that the log decides stays.
func (c *Control) Remove(ctx context.Context, name string, force bool) error {
	m, ok := c.View().Member(name)
	if !ok {
		return fmt.Errorf("remove: %w: %s", ErrNotMember, name)
	}
	if !force && c.seemsAlive(m) {
		return fmt.Errorf("remove %s: %w: let it leave, or use --force (?force=true); one that was killed is found dead in seconds", name, ErrAlive)
	}
	if len(c.View().Members) == 1 {
		return fmt.Errorf("remove %s: %w: it is the only member; end its process instead", name, ErrMajority)
	}
	if err := c.mayRemove(m); err != nil {
		return fmt.Errorf("remove %s: %w", name, err)
	}
	r, err := c.Propose(ctx, state.Command{Remove: &name, Boots: c.processes(m)})
	if err == nil {
		err = r.Err()
	}
	if err != nil {
		return fmt.Errorf("remove %s: %w", name, err)
	}
	return nil
}

// processes returns the boot ids of a member that are known here: of the process that the
// log knows, and of a later one that gossip shows. A removal is about those. Without, one
// that waits for a leader would meet a process that has come back in the meantime, and
// that may be the very voter that the log was waiting for; and a process that gossip still
// shows, and that was not introduced yet, would be taken in again.
func (c *Control) processes(m state.Member) []uint64 {
	out := []uint64{m.Boot}
	if p, ok := c.peers()[m.ServerID]; ok && p.Boot != 0 && p.Boot != m.Boot {
		out = append(out, p.Boot)
	}
	return out
}

func (c *Control) mayRemove(m state.Member) error {
	c.mu.Lock()
	health := c.mu.health
	c.mu.Unlock()
	seats, _, _, err := c.seats(c.peers(), health)
	if err != nil {
		return err
	}
	for _, s := range seats {
		if s.id == m.ServerID && s.voter && s.alive && !mayGo(seats, s.id) {
			return fmt.Errorf("%w: bring dead members back first, or remove them", ErrMajority)
		}
	}
	return nil
}

func (c *Control) seemsAlive(m state.Member) bool {
	if m.Name == c.cfg.Self.Name {
		return true
	}
	return slices.ContainsFunc(c.deps.Gossip.Peers(), func(p gossip.Peer) bool { return p.Name == m.Name && p.ServerID == m.ServerID && p.Alive })
}

func (c *Control) isRemoved() bool {
	select {
	case <-c.removed:
		return true
	default:
		return false
	}
}

// released reports whether this process, which is no member any more, may end. A voter
// that ended before its vote was taken away would count as one that is dead: with another
// one dead, nobody could lead, and nobody could take the vote away. What this server knows
// of the voters may be old, since nobody tells a server that was taken out of the log, so
// the leader is asked too.
func (c *Control) released(ctx context.Context) bool {
	if votes, err := c.hasVote(c.cfg.Self.ServerID); err == nil && !votes {
		return true
	}
	for id, p := range c.peers() {
		if !p.Alive || id == c.cfg.Self.ServerID {
			continue
		}
		actx, cancel := context.WithTimeout(ctx, askTimeout)
		answer, err := c.ask(actx, p.Name, methodVotes)
		cancel()
		if err == nil && len(answer) == 1 {
			return answer[0] == 0
		}
	}
	return false
}
