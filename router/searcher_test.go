package router

import (
	"testing"
	"time"
)

// panicking is a cluster that cannot make a searcher.
type panicking struct{ Cluster }

func (panicking) NewSearcher() Searcher { panic("no searcher today") }

// A panic while a searcher is made loses neither its place nor the end: the next
// request finds one, and close does not wait for one that never was.
func TestPanicWhileSearcherIsMade(t *testing.T) {
	var p searcherPool
	p.init(panicking{}, 2, time.Millisecond)
	for range 5 {
		func() {
			defer func() {
				if recover() == nil {
					t.Error("no panic came through")
				}
			}()
			_, err := p.acquire(t.Context())
			t.Errorf("acquire returned %v", err)
		}()
	}
	closed := make(chan struct{})
	go func() {
		p.close()
		close(closed)
	}()
	select {
	case <-closed:
	case <-time.After(10 * time.Second):
		t.Fatal("close waits for a searcher that was never made")
	}
}
