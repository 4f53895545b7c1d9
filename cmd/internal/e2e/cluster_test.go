package e2e

import (
	"fmt"
	"sync"
	"syscall"
	"testing"
	"time"
)

// awaitSources waits until every source has a reader.
func (c *processes) awaitSources(n int) {
	c.tb.Helper()
	await(c.tb, 30*time.Second, func() string {
		sources := 0
		ms := c.members()
		for _, m := range ms {
			sources += m.Sources
		}
		if sources != n {
			return fmt.Sprintf("%d of %d sources have a reader: %+v", sources, n, ms)
		}
		return ""
	})
}

// awaitGone waits until a node has left: no member any more, its process ended.
func (c *processes) awaitGone(name string) {
	c.tb.Helper()
	p := c.nodes[name]
	delete(c.nodes, name)
	await(c.tb, 60*time.Second, func() string {
		if m, is := c.members()[name]; is {
			return fmt.Sprintf("%s is still a member: %+v", name, m)
		}
		return ""
	})
	select {
	case err := <-p.ended:
		if err != nil { // what watches over it would start it again
			c.tb.Errorf("the process of %s, which left, ended with %v\n%s", name, err, lastLines(p.log, 5))
		}
	case <-time.After(20 * time.Second):
		_ = p.cmd.Process.Kill()
		c.tb.Errorf("the process of %s did not end after it left\n%s", name, lastLines(p.log, 20))
	}
}

// Promise 2 on a cluster whose nodes are killed, paused and started again: no answer that
// is not marked stale is above what was justified, none that is complete and current is
// below what every owner had applied.
func TestClusterNeverMore(t *testing.T) {
	c := startCluster(t, 3)
	var mu sync.Mutex // of c's nodes, which queries look at
	v := &envelopeCheck{tb: t, url: c.nodes["n1"].url}
	v.nodes = func() []string {
		mu.Lock()
		defer mu.Unlock()
		return c.urls()
	}
	kill := func(name string) {
		mu.Lock()
		p := c.nodes[name]
		delete(c.nodes, name)
		mu.Unlock()
		_ = p.cmd.Process.Kill()
		<-p.ended
	}
	start := func(name string) {
		p, err := c.launch(name)
		if err != nil {
			t.Error(err)
			return
		}
		mu.Lock()
		defer mu.Unlock()
		c.nodes[name] = p
	}
	round := 0
	v.faults = func() {
		name := []string{"n2", "n3"}[round/2%2]
		if round++; round%2 == 1 {
			kill(name)
			time.Sleep(4 * time.Second) // the fault itself: longer than its detection
			start(name)
		} else {
			c.signal(name, syscall.SIGSTOP)
			time.Sleep(5 * time.Second)
			c.signal(name, syscall.SIGCONT)
		}
		c.awaitBalanced(3)
	}
	v.run(max(30*time.Second, *soakTime))
}

// An owner that stands still for ten seconds costs no engine a gap, and is caught up
// afterwards without an operator.
func TestClusterPausedOwner(t *testing.T) {
	c := startCluster(t, 3)
	x := startTraffic(t, c, requests(300), 6)
	c.awaitSources(16)
	name := c.holder(func(m memberView) bool { return m.Role != "leader" })
	c.signal(name, syscall.SIGSTOP)
	time.Sleep(10 * time.Second) // the fault itself
	c.signal(name, syscall.SIGCONT)
	c.awaitBalanced(3)
	x.settle()
	var ws []struct {
		Listeners map[string]listener
	}
	call(t, "GET", c.anyURL()+"/workers", nil, &ws)
	for _, w := range ws {
		for rank, l := range w.Listeners {
			if l.Gaps > 0 {
				t.Errorf("rank %s at %s has %d gaps", rank, l.Endpoint, l.Gaps)
			}
		}
	}
}
