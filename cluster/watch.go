package cluster

import "sync"

// watch lets any number of goroutines wait for the next change of something.
type watch struct {
	mu struct {
		sync.Mutex
		ch chan struct{} // closed by the next notify; nil = nobody waits
	}
}

// next returns a channel that the next notify closes. Take it before looking at the
// thing, so that no change is missed.
func (w *watch) next() <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.mu.ch == nil {
		w.mu.ch = make(chan struct{})
	}
	return w.mu.ch
}

func (w *watch) notify() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.mu.ch != nil {
		close(w.mu.ch)
		w.mu.ch = nil
	}
}
