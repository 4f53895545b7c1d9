package raftlog

import (
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/raft"
)

// counted is a transport that counts the empty entries of its pipelines.
type counted struct {
	raft.Transport
	empty *atomic.Int64
}

type countedPipeline struct {
	raft.AppendPipeline
	empty *atomic.Int64
}

func (c counted) AppendEntriesPipeline(id raft.ServerID, to raft.ServerAddress) (raft.AppendPipeline, error) {
	p, err := c.Transport.AppendEntriesPipeline(id, to)
	return countedPipeline{p, c.empty}, err
}

func (c countedPipeline) AppendEntries(args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) (raft.AppendFuture, error) {
	if len(args.Entries) == 0 {
		c.empty.Add(1)
	}
	return c.AppendPipeline.AppendEntries(args, resp)
}

// told is a pipeline that notes what goes through it.
type told struct {
	raft.AppendPipeline
	sent []string
}

func (p *told) AppendEntries(args *raft.AppendEntriesRequest, _ *raft.AppendEntriesResponse) (raft.AppendFuture, error) {
	p.sent = append(p.sent, fmt.Sprintf("%d@%d of %d, commit %d, term %d", len(args.Entries), args.PrevLogEntry, time.Now().Unix()%1000, args.LeaderCommitIndex, args.Term))
	return nil, nil
}

// TestQuietPipeline: only what repeats the last request is left out, and not for long.
func TestQuietPipeline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		base := time.Now().Unix() % 1000
		in := &told{}
		p := &quietPipeline{AppendPipeline: in, every: 1500 * time.Millisecond}
		say := func(prev, commit, term uint64, entries ...*raft.Log) {
			t.Helper()
			if _, err := p.AppendEntries(&raft.AppendEntriesRequest{PrevLogEntry: prev, LeaderCommitIndex: commit, Term: term, Entries: entries}, nil); err != nil {
				t.Fatal(err)
			}
		}
		say(7, 7, 1) // the first always
		say(7, 7, 1)
		say(7, 7, 1, &raft.Log{Index: 8}) // entries always
		say(8, 7, 1)                      // known since the entries went
		say(8, 8, 1)                      // a new commit index
		say(8, 8, 1)
		say(8, 8, 2) // a new term
		say(7, 8, 2) // an earlier end
		time.Sleep(time.Second)
		say(7, 8, 2)
		time.Sleep(time.Second)
		say(7, 8, 2) // long ago
		say(7, 8, 2)
		want := []string{}
		for _, w := range []struct {
			n, prev   int
			after     int64
			commit, m int
		}{{0, 7, 0, 7, 1}, {1, 7, 0, 7, 1}, {0, 8, 0, 8, 1}, {0, 8, 0, 8, 2}, {0, 7, 0, 8, 2}, {0, 7, 2, 8, 2}} {
			want = append(want, fmt.Sprintf("%d@%d of %d, commit %d, term %d", w.n, w.prev, (base+w.after)%1000, w.commit, w.m))
		}
		if d := cmp.Diff(want, in.sent); d != "" {
			t.Errorf("sent (-want +got):\n%s", d)
		}
	})
}

// TestQuietLog: an idle leader says nothing new four times a heartbeat at most, all
// others still apply what it commits at once, and one that was away catches up.
func TestQuietLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var count atomic.Int64
		r := &ring{t: t, logs: map[raft.ServerID]*Log{}, trans: map[raft.ServerID]*raft.InmemTransport{}, store: map[raft.ServerID]Stores{}}
		r.wrap = func(tr raft.Transport) raft.Transport { return counted{tr, &count} }
		for _, id := range []raft.ServerID{"a", "b", "c"} {
			r.start(id)
		}
		defer r.close()
		r.found()
		time.Sleep(5 * time.Second)
		synctest.Wait()
		count.Store(0)
		time.Sleep(10 * time.Second)
		if empty, most := count.Load(), int64(2*4*10); empty > most || empty < 10 {
			t.Errorf("%d empty entries in 10 idle seconds, want at most %d and not none", empty, most)
		}
		for i := range 5 {
			r.propose("a", register(100+i))
			time.Sleep(150 * time.Millisecond)
			synctest.Wait()
			index := r.logs["a"].View().Index
			for id, l := range r.logs {
				if got := l.View().Index; got != index {
					t.Errorf("150 ms after a command %s is at index %d, the leader at %d", id, got, index)
				}
			}
		}
	})
}
