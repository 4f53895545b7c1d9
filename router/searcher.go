package router

import (
	"context"
	"time"

	"github.com/kvcluster/kvcluster/indexer"
)

// searcher is what one query needs besides its request: a handle on the index and
// memory for everything on the way to the answer.
type searcher struct {
	Searcher
	scores   [2]indexer.Scores // of each path
	pins     [2]uint64
	board    board
	locals   []uint64
	rows     []indexer.Row
	prefixes []indexer.Prefix
}

// searcherPool hands out searchers, a bounded number at a time: it is also what bounds
// the queries that are worked on concurrently.
type searcherPool struct {
	cluster Cluster
	wait    time.Duration
	idle    chan *searcher // nil = may still be made
}

func (p *searcherPool) init(c Cluster, n int, wait time.Duration) {
	p.cluster, p.wait = c, wait
	p.idle = make(chan *searcher, n)
	for range n {
		p.idle <- nil
	}
}

// acquire returns a searcher, waiting for one at most the queue time.
func (p *searcherPool) acquire(ctx context.Context) (*searcher, error) {
	select {
	case s := <-p.idle:
		return p.made(s), nil
	default:
	}
	timer := time.NewTimer(p.wait)
	defer timer.Stop()
	select {
	case s := <-p.idle:
		return p.made(s), nil
	case <-ctx.Done():
		return nil, &apiError{status: 503, text: "request ended while it waited for its turn"}
	case <-timer.C:
		return nil, &apiError{status: 503, text: "too many queries at the same time, try again"}
	}
}

func (p *searcherPool) made(s *searcher) *searcher {
	if s != nil {
		return s
	}
	made := false
	defer func() {
		if !made { // NewSearcher panicked: the place must not be lost, or close would wait for it
			p.idle <- nil
		}
	}()
	s = &searcher{Searcher: p.cluster.NewSearcher()}
	made = true
	return s
}

func (p *searcherPool) release(s *searcher) { p.idle <- s }

// close closes every searcher. None may be in use, and none can be acquired after.
func (p *searcherPool) close() {
	for range cap(p.idle) {
		if s := <-p.idle; s != nil {
			s.Close()
		}
	}
}
