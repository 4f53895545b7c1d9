package link

import (
	"testing"
	"testing/synctest"
	"time"
)

// TestIdleLinks: two nodes that have nothing to say send one message each in each Idle,
// the stamp for one direction and the echo of the other together, and stay current.
func TestIdleLinks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 1, "a", "b")
		f.startAll()
		defer f.stopAll()
		a, b := f.nodes[0], f.nodes[1]
		a.session("b", Session{})
		b.session("a", Session{})
		time.Sleep(3 * time.Second)
		counts := map[string]int{}
		count := func(from, to string) {
			f.net.SetMeshFault(from, to, func(m []byte) []time.Duration {
				counts[from]++
				if kind(m[3]) != kindBoth {
					t.Errorf("%s sent a message of kind %d", from, m[3])
				}
				return []time.Duration{0}
			})
		}
		count("a", "b")
		count("b", "a")
		const beats = 40
		time.Sleep(beats * a.cfg.Idle)
		synctest.Wait()
		for _, n := range f.nodes {
			if got := counts[n.name]; got < beats-1 || got > beats+1 {
				t.Errorf("%s sent %d messages in the time of %d", n.name, got, beats)
			}
		}
		for _, n := range f.nodes {
			for peer, st := range n.PeerStats() {
				if !st.Current || st.Lapsed || st.Silences > 0 || st.SessionsOut != 1 {
					t.Errorf("%s to %s: %+v", n.name, peer, st)
				}
			}
		}
		if bad := f.j.failures(); bad != nil {
			t.Error(lines(bad))
		}
	})
}

// TestFlushDelay: a frame after a pause goes at once, those soon after it together.
func TestFlushDelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 1, "a", "b")
		f.cfg = func(c *Config) { c.Window, c.Retention = 1<<20, 1<<20 }
		f.startAll()
		defer f.stopAll()
		a := f.nodes[0]
		s := a.session("b", Session{})
		time.Sleep(a.cfg.Idle + 123*time.Microsecond)
		before := a.PeerStats()["b"].MessagesOut
		if err := a.send(s, 10); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if got := a.PeerStats()["b"].MessagesOut - before; got != 1 {
			t.Errorf("a frame after a pause made %d messages at once, want 1", got)
		}
		const each, many = 50 * time.Microsecond, 1000
		for range many {
			if err := a.send(s, 10); err != nil {
				t.Fatal(err)
			}
			time.Sleep(each)
		}
		time.Sleep(a.cfg.FlushDelay)
		synctest.Wait()
		st := a.PeerStats()["b"]
		if most := uint64(many*each/a.cfg.FlushDelay) + 3; st.MessagesOut-before > most {
			t.Errorf("%d frames in %v made %d messages, want at most %d", many, many*each, st.MessagesOut-before, most)
		}
		if st.Sent != st.Last {
			t.Errorf("%d of %d frames have been sent", st.Sent, st.Last)
		}
	})
}
