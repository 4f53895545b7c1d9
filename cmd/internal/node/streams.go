package node

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/vmihailenco/msgpack/v5"

	"github.com/kvcluster/kvcluster/cluster/member"
	"github.com/kvcluster/kvcluster/router"
)

// streams knows the streams of all nodes: each is read by one of them, and any of them
// is asked for all.
type streams struct {
	name string
	m    *member.Member
	own  func() []router.StreamStatus
	mu   struct {
		sync.Mutex
		last []router.StreamStatus
		at   time.Time
	}
}

// The calls between nodes about streams, in msgpack.
const (
	methodStreams = "node.streams" // nothing -> []router.StreamStatus
	methodControl = "node.stream"  // streamControl -> nothing
)

type streamControl struct {
	Instance string
	Rank     uint32
	Pause    bool
}

const (
	// streamsFor is how long an answer is good enough.
	streamsFor = 250 * time.Millisecond
	// streamsTimeout bounds the wait for another node.
	streamsTimeout = time.Second
)

func newStreams(name string, m *member.Member, own func() []router.StreamStatus) *streams {
	s := &streams{name: name, m: m, own: own}
	m.Handle(methodStreams, func(context.Context, string, []byte) ([]byte, error) { return msgpack.Marshal(s.mine()) })
	m.Handle(methodControl, func(ctx context.Context, _ string, req []byte) ([]byte, error) {
		var c streamControl
		if err := msgpack.Unmarshal(req, &c); err != nil {
			return nil, fmt.Errorf("decode: %w", err)
		}
		return nil, s.here(ctx, c)
	})
	return s
}

func (s *streams) mine() []router.StreamStatus {
	own := s.own()
	for i := range own {
		own[i].Reader = s.name
	}
	return own
}

func (s *streams) here(ctx context.Context, c streamControl) error {
	if c.Pause {
		return s.m.Node().Ingest().Pause(ctx, c.Instance, c.Rank)
	}
	return s.m.Node().Ingest().Resume(ctx, c.Instance, c.Rank)
}

// control pauses or resumes a stream wherever it is read.
func (s *streams) control(ctx context.Context, instance string, rank uint32, pause bool) error {
	c := streamControl{instance, rank, pause}
	reader := s.name
	v := s.m.Node().View()
	for _, src := range v.Catalog.Sources() {
		for _, r := range src.Ranks {
			if src.Instance == instance && r.Rank == rank {
				reader = v.Assignments[src.ID].Node
			}
		}
	}
	if reader == s.name {
		return s.here(ctx, c)
	}
	req, err := msgpack.Marshal(c)
	if err != nil {
		return err
	}
	_, err = s.m.Call(ctx, reader, methodControl, req)
	return err
}

// recent returns what was last collected.
func (s *streams) recent() []router.StreamStatus {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.last
}

// all asks every node that reads anything. One that does not answer in time has no
// streams in the answer: its ranks are shown as pending.
func (s *streams) all() []router.StreamStatus {
	s.mu.Lock()
	if time.Since(s.mu.at) < streamsFor {
		defer s.mu.Unlock()
		return append([]router.StreamStatus(nil), s.mu.last...)
	}
	s.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), streamsTimeout)
	defer cancel()
	readers := map[string]bool{}
	for _, a := range s.m.Node().View().Assignments {
		readers[a.Node] = true
	}
	delete(readers, s.name)
	var mu sync.Mutex
	out := s.mine()
	var wg sync.WaitGroup
	for name := range readers {
		if !s.m.Alive(name) {
			continue
		}
		wg.Go(func() {
			raw, err := s.m.Call(ctx, name, methodStreams, nil)
			var theirs []router.StreamStatus
			if err != nil || msgpack.Unmarshal(raw, &theirs) != nil {
				return
			}
			mu.Lock()
			defer mu.Unlock()
			out = append(out, theirs...)
		})
	}
	wg.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.last, s.mu.at = out, time.Now()
	return append([]router.StreamStatus(nil), out...)
}
