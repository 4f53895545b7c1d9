package gossip

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

// A death is seen by all as soon as Detection says; a node that is only slow is not
// taken for dead.
func TestDetection(t *testing.T) {
	for _, nodes := range []int{2, 3, 5, 12} {
		t.Run(fmt.Sprint(nodes), func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *world) {
				w.cluster(nodes)
				var all []time.Duration
				usual, limit := Detection(nodes, defaultProbe)
				if u, l := w.nodes["n1"].Detection(); u != usual || l != limit {
					t.Errorf("n1 says %v, %v", u, l)
				}
				limit += defaultProbe // the runs that die here count for a while
				for i := range 5 {
					time.Sleep(time.Duration(i) * 130 * time.Millisecond) // another phase of the beats
					w.stop("n2")
					all = append(all, w.await("n2 is dead for all", limit, func() bool { return w.allSee(nodes - 1) }))
					for name, n := range w.nodes {
						if p := n.peer("n2"); p.Alive || p.Raft != "10.0.0.2:1" || p.Address != addrOf(2) {
							t.Errorf("%s has n2 as %+v", name, p)
						}
					}
					w.start(2, addrOf(1))
					w.await("n2 is back and all are well", 10*time.Second, func() bool {
						for _, n := range w.nodes {
							if n.Health() > 0 {
								return false
							}
						}
						return w.allSee(nodes)
					})
				}
				slices.Sort(all)
				t.Logf("median %v, longest %v; said: usual %v, at most %v", all[len(all)/2], all[len(all)-1], usual, limit-defaultProbe)
				if m := all[len(all)/2]; m > usual+defaultProbe {
					t.Errorf("usually it takes %v, said %v", m, usual)
				}
			})
		})
	}
}

func TestDetectionFormula(t *testing.T) {
	usual, limit := Detection(5, defaultProbe)
	if usual < time.Second || usual > 2*time.Second || limit > 3500*time.Millisecond {
		t.Errorf("the default beat gives %v to %v for five nodes", usual, limit)
	}
	if u, _ := Detection(100, defaultProbe); u < usual+800*time.Millisecond {
		t.Errorf("a hundred nodes take %v, five %v: the logarithm is missing", u, usual)
	}
	if u, l := Detection(5, time.Second); u < 2*usual || l < 2*limit {
		t.Errorf("a beat of 1 s gives %v to %v", u, l)
	}
}

// A beat that is configured is the beat.
func TestSlowBeat(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		for i := 1; i <= 3; i++ {
			cfg := w.config(i)
			cfg.Probe = 2 * time.Second
			w.startConfig(cfg, addrOf(i), seedFor(i)...)
		}
		w.await("all see all", 10*time.Second, func() bool { return w.allSee(3) })
		w.stop("n3")
		_, limit := Detection(3, 2*time.Second)
		if took := w.await("n3 is dead", limit, func() bool { return w.allSee(2) }); took < 4*time.Second {
			t.Errorf("dead after %v with a beat of 2 s", took)
		}
	})
}

// Lost packets, and a node that stands still shorter than the suspicion lasts, kill
// nobody; the awareness score tells.
func TestLossKillsNobody(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.cluster(5)
		w.net.SetLoss(0.1)
		w.net.SetDelay(func(from, to string) time.Duration { return time.Duration(len(from)+len(to)) * 100 * time.Microsecond })
		changed := w.nodes["n1"].Changed()
		for len(changed) > 0 {
			<-changed
		}
		time.Sleep(time.Minute)
		if !w.allSee(5) {
			t.Error("somebody died of a tenth of the packets")
		}
		if len(changed) > 0 {
			t.Error("n1 saw changes")
		}
		w.net.SetLoss(0)
		w.net.Pause(addrOf(4))
		time.Sleep(800 * time.Millisecond)
		w.net.Resume(addrOf(4))
		time.Sleep(5 * time.Second)
		if !w.allSee(5) {
			t.Error("n4 died of 0.8 s")
		}
		if w.net.Stats().Lost == 0 {
			t.Error("nothing was lost: the test tests nothing")
		}
	})
}

// A paused node is seen dead, thinks the same of the others, is poor in health, and is
// among them soon after it goes on.
func TestPausedNodeComesBack(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.cluster(5)
		w.net.Pause(addrOf(5))
		_, limit := Detection(5, defaultProbe)
		w.await("n5 is dead for the others", limit, func() bool { return w.nodes["n1"].alive() == 4 })
		w.await("n5 is alone", 30*time.Second, func() bool { return w.nodes["n5"].alive() == 1 })
		if w.nodes["n5"].Health() == 0 || w.nodes["n5"].Stats().Health == 0 {
			t.Error("n5 thinks that it is well")
		}
		w.net.Resume(addrOf(5))
		took := w.await("all see all", 10*time.Second, func() bool { return w.allSee(5) })
		t.Logf("back after %v", took)
	})
}

// After a cut that is longer than memberlist remembers the dead, both sides find each
// other without seeds.
func TestLongCutHeals(t *testing.T) {
	for _, length := range []time.Duration{5 * time.Second, 2 * time.Minute} {
		t.Run(length.String(), func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *world) {
				w.cluster(5)
				w.net.CutBoth([]string{addrOf(1), addrOf(2)}, []string{addrOf(3), addrOf(4), addrOf(5)})
				time.Sleep(length)
				for name, n := range w.nodes {
					want := 3
					if name == "n1" || name == "n2" {
						want = 2
					}
					if got := n.alive(); got != want {
						t.Errorf("%s sees %d alive, want %d", name, got, want)
					}
					if len(n.Peers()) != 5 {
						t.Errorf("%s has forgotten nodes", name)
					}
				}
				w.net.Heal()
				took := w.await("all see all", 15*time.Second, func() bool { return w.allSee(5) })
				t.Logf("together again after %v", took)
				if s := w.nodes["n1"].Stats(); length > 30*time.Second && s.RejoinFailed == 0 {
					t.Errorf("stats %+v", s)
				}
			})
		})
	}
}

// One direction of one link cut: the others vouch for both.
func TestOneWayCutKillsNobody(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.cluster(5)
		w.net.Cut(addrOf(1), addrOf(2))
		time.Sleep(time.Minute)
		if !w.allSee(5) {
			t.Error("somebody died of one direction")
		}
	})
}

// A seed that comes up later is joined by Run, whoever starts first; its name may not
// even resolve yet.
func TestSeedComesLater(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		cfg := w.config(2)
		cfg.Seeds = []string{addrOf(1), addrOf(2)}
		n := w.startConfig(cfg, addrOf(2))
		time.Sleep(time.Minute)
		w.start(1)
		w.await("both see both", 10*time.Second, func() bool { return w.allSee(2) })
		// Seeds that are replaced are tried instead.
		w.start(3)
		n.SetSeeds([]string{addrOf(3)})
		w.await("all see all", 10*time.Second, func() bool { return w.allSee(3) })
		if got := n.Stats(); got.Rejoins < 2 || got.Alive != 3 || got.Known != 3 {
			t.Errorf("stats %+v", got)
		}
	})
}

// A clock that goes wrong later keeps nobody out after a cut; it is only told.
func TestClockThatGoesWrongLater(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.start(1)
		off := time.Duration(0)
		cfg := w.config(2)
		cfg.Clock = func() time.Time { return time.Now().Add(off) }
		n := w.startConfig(cfg, addrOf(2), addrOf(1))
		w.await("both see both", time.Second, func() bool { return w.allSee(2) })
		w.net.CutBoth([]string{addrOf(1)}, []string{addrOf(2)})
		time.Sleep(time.Minute)
		off = time.Hour
		w.net.Heal()
		w.await("both see both again", 15*time.Second, func() bool { return w.allSee(2) })
		if log := n.log.String() + w.nodes["n1"].log.String(); !strings.Contains(log, "The clock of this node is 1h0m0s") {
			t.Errorf("nobody tells: %s", log)
		}
	})
}

func TestMetaGoesRound(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.cluster(5)
		n := w.nodes["n2"]
		m := n.Meta()
		m.Weight, m.HasData, m.Zone = 3.5, true, "z"
		m.Name, m.Boot = "ignored", 99
		if err := n.SetMeta(m); err != nil {
			t.Fatal(err)
		}
		want := n.Meta()
		if want.Name != "n2" || want.Boot == 99 || want.Weight != 3.5 {
			t.Fatalf("meta %+v", want)
		}
		took := w.await("all have it", 2*time.Second, func() bool {
			for _, o := range w.nodes {
				if o.peer("n2").Meta != want {
					return false
				}
			}
			return true
		})
		t.Logf("after %v", took)
		m.Zone = strings.Repeat("z", 600)
		wantTold(t, n.SetMeta(m), ErrTooLong, "zone")
		if n.Meta() != want {
			t.Error("a refused change is there")
		}
	})
}

// A node that says that it leaves is gone at once, and nobody tries it again; Forget
// drops it.
func TestLeave(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.cluster(4)
		n := w.nodes["n3"]
		if err := n.Leave(time.Second); err != nil {
			t.Fatal(err)
		}
		if err := n.Leave(time.Second); err != nil {
			t.Errorf("again: %v", err)
		}
		m := n.Meta()
		m.Weight = 9
		if err := n.SetMeta(m); err != nil {
			t.Error(err)
		}
		w.await("n3 has left", 600*time.Millisecond, func() bool { return w.nodes["n1"].alive() == 3 && w.nodes["n4"].alive() == 3 })
		time.Sleep(time.Minute)
		if w.nodes["n1"].alive() != 3 {
			t.Error("n3 came back")
		}
		m.Weight = 10
		if err := n.SetMeta(m); err != nil { // memberlist has forgotten itself by now, and must not be asked
			t.Error(err)
		}
		time.Sleep(time.Second)
		w.stop("n3")
		n1 := w.nodes["n1"]
		n1.Forget("server-4") // alive: nothing happens
		n1.Forget("server-3")
		if p := n1.Peers(); len(p) != 3 || p[2].Name != "n4" || !p[2].Alive {
			t.Errorf("peers %+v", p)
		}
	})
}

// Many changes at once are one signal, or a few; each watcher has its own.
func TestChangesAreCoalesced(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		n := w.start(1)
		other := n.Watch()
		time.Sleep(time.Second)
		for _, ch := range []<-chan struct{}{n.Changed(), other} {
			for len(ch) > 0 {
				<-ch
			}
		}
		before := n.Stats().Changes
		for i := 2; i <= 21; i++ {
			w.start(i, addrOf(1))
		}
		time.Sleep(time.Second)
		if n.alive() != 21 {
			t.Fatalf("%d alive", n.alive())
		}
		if got := n.Stats().Changes - before; got < 1 || got > 6 {
			t.Errorf("20 joins were told %d times", got)
		}
		for _, ch := range []<-chan struct{}{n.Changed(), other} {
			if len(ch) != 1 {
				t.Errorf("a watcher has %d signals", len(ch))
			}
		}
	})
}

// A warning of memberlist comes once in ten seconds, with the number left out.
func TestLogIsThrottled(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		n := w.start(1)
		stranger := w.config(2)
		stranger.Label = "other"
		s := w.startConfig(stranger, addrOf(2))
		for range 500 {
			_ = s.Join(t.Context(), []string{addrOf(1)})
			time.Sleep(100 * time.Millisecond)
		}
		log := n.log.String()
		lines := strings.Count(log, "turned away")
		if lines < 3 || lines > 6 {
			t.Errorf("50 s of refusals are %d lines:\n%s", lines, log)
		}
		if !strings.Contains(log, "left_out=99") || !strings.Contains(log, "its_label=other") {
			t.Errorf("the log is %s", log)
		}
		if strings.Contains(log, "[WARN]") || strings.Contains(log, "level=INFO msg=\"memberlist") {
			t.Errorf("memberlist's own levels are in the log: %s", log)
		}
	})
}
