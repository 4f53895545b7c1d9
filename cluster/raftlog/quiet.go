package raftlog

import (
	"time"

	"github.com/hashicorp/raft"
)

// quiet is a transport that leaves out what says nothing.
//
// raft has followers learn of the leader's commit index by empty entries, 50 to 100 ms
// apart (CommitTimeout), for ever and to everybody. They are no heartbeats: those go over
// connections of their own, and prove the leader. So an empty entry that says the same as
// the one before is not sent, unless the last one is so long ago that the connection may
// have gone meanwhile: raft looks after a follower that came back only when a send has
// failed. What is left out is never answered, so it counts as no contact and no vote.
type quiet struct {
	raft.Transport
	every time.Duration
}

// quietPreVote is quiet for a transport that can ask before a vote.
type quietPreVote struct {
	quiet
	raft.WithPreVote
}

// newQuiet wraps a transport; an empty entry is sent every so often all the same.
func newQuiet(t raft.Transport, every time.Duration) raft.Transport {
	q := quiet{t, every}
	if p, ok := t.(raft.WithPreVote); ok {
		return quietPreVote{q, p}
	}
	return q
}

// Close implements raft.WithClose, for transports that do.
func (q quiet) Close() error {
	if c, ok := q.Transport.(raft.WithClose); ok {
		return c.Close()
	}
	return nil
}

// AppendEntriesPipeline implements raft.Transport.
func (q quiet) AppendEntriesPipeline(id raft.ServerID, target raft.ServerAddress) (raft.AppendPipeline, error) {
	p, err := q.Transport.AppendEntriesPipeline(id, target)
	if err != nil {
		return nil, err
	}
	return &quietPipeline{AppendPipeline: p, every: q.every}, nil
}

// quietPipeline is used by one goroutine of raft.
type quietPipeline struct {
	raft.AppendPipeline
	every time.Duration

	sent               time.Time // of the last request; zero = none yet
	term, tail, commit uint64    // what it said
}

// AppendEntries implements raft.AppendPipeline. raft does not look at the future: it waits
// for what comes from Consumer, and nothing does for what is left out.
func (p *quietPipeline) AppendEntries(args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) (raft.AppendFuture, error) {
	tail := args.PrevLogEntry
	if n := len(args.Entries); n > 0 {
		tail = args.Entries[n-1].Index
	}
	now := time.Now()
	if len(args.Entries) == 0 && !p.sent.IsZero() && now.Sub(p.sent) < p.every &&
		args.Term == p.term && tail == p.tail && args.LeaderCommitIndex == p.commit {
		return nil, nil
	}
	f, err := p.AppendPipeline.AppendEntries(args, resp)
	if err == nil {
		p.sent, p.term, p.tail, p.commit = now, args.Term, tail, args.LeaderCommitIndex
	}
	return f, err
}
