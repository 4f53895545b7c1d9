package ingest

import (
	"testing"
	"time"

	"github.com/kvcluster/kvcluster/shard/catalog"
	"github.com/kvcluster/kvcluster/transport"
	"github.com/kvcluster/kvcluster/transport/memory"
)

// twinEngine is an engine on the transport's in-memory twin, with its queues,
// reconnections and delays.
type twinEngine struct {
	w    *world
	p    transport.Publisher
	next uint64
}

const (
	twinEndpoint = "tcp://e1:5557"
	twinReplay   = "tcp://e1:5558"
)

func (w *world) twin(net *memory.Network) *twinEngine {
	p, err := net.NewPublisher(transport.PublisherConfig{Endpoint: twinEndpoint, ReplayEndpoint: twinReplay})
	if err != nil {
		w.t.Fatal(err)
	}
	return &twinEngine{w: w, p: p}
}

func (e *twinEngine) grow(from, n int) {
	all := letters(26)
	for i := from; i < from+n; i++ {
		e.publish(batch(store(all[:i], all[i:i+1])))
	}
}

func (e *twinEngine) publish(payload []byte) {
	if err := e.p.Publish("kv-events", e.next, payload); err != nil {
		e.w.t.Fatal(err)
	}
	e.next++
}

func runTwin(t *testing.T, cfg memory.Config, test func(w *world, net *memory.Network)) {
	var net *memory.Network
	run(t, []option{func(_ *Config, d *Deps) {
		net = memory.New(cfg)
		d.Network = net
	}}, func(w *world) { test(w, net) })
}

func (w *world) registerTwin() {
	w.registerAs(catalog.Registration{Instance: "w1", Endpoint: twinEndpoint, ReplayEndpoint: twinReplay})
	w.settle()
}

func TestTwinFaults(t *testing.T) {
	for _, c := range []struct {
		name  string
		fault func(net *memory.Network)
	}{
		{"none", func(*memory.Network) {}},
		{"lost batches", func(net *memory.Network) {
			n := 0
			net.SetDrop(twinEndpoint, memory.ToIndexer, func([][]byte) bool { n++; return n%3 == 0 })
		}},
		{"a connection lost", func(net *memory.Network) { net.Disconnect(twinEndpoint) }},
		{"frozen for 10 s", func(net *memory.Network) {
			net.Freeze(twinEndpoint)
			time.AfterFunc(10*time.Second, func() { net.Heal(twinEndpoint) })
		}},
		{"frozen for a minute", func(net *memory.Network) {
			net.Freeze(twinEndpoint)
			time.AfterFunc(time.Minute, func() { net.Heal(twinEndpoint) })
		}},
		{"other shape, no marker", func(net *memory.Network) {
			net.SetReplayFault(twinReplay, memory.ReplayFault{OtherShape: true, NoEnd: true})
			net.Disconnect(twinEndpoint)
		}},
		{"replies dropped", func(net *memory.Network) {
			net.SetReplayFault(twinReplay, memory.ReplayFault{HighWater: 3})
			net.Disconnect(twinEndpoint)
		}},
		{"replay cut for 5 s", func(net *memory.Network) {
			net.Cut(twinReplay)
			net.Disconnect(twinEndpoint)
			time.AfterFunc(5*time.Second, func() { net.Heal(twinReplay) })
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			runTwin(t, memory.Config{SubscribeDelay: 30 * time.Millisecond}, func(w *world, net *memory.Network) {
				e := w.twin(net)
				e.grow(0, 5)
				w.registerTwin()
				e.grow(5, 3)
				w.settle()
				w.want(letters(8), 8)
				c.fault(net)
				e.grow(8, 6)
				e.publish(batch(remove(letters(2)), store("", "xy")))
				net.SetDrop(twinEndpoint, memory.ToIndexer, nil)
				w.wait(2 * time.Minute)
				e.publish(batch(store("xy", "z")))
				w.settle()
				w.want(letters(14), 1, "xyz", 3)
				e.publish(batch(store("a", "b")))
				w.settle()
				w.want(letters(14), 14)
				equal(t, "new lives", w.asked, 0)
				s := w.source("w1")
				equal(t, "state", s.Ranks[0].State, Active)
				equal(t, "batches", s.Ranks[0].Counters.Batches, e.next)
			})
		})
	}
}

// The first batches are missed because the subscription takes its time, and the replay
// was asked before they existed.
func TestTwinSlowSubscription(t *testing.T) {
	runTwin(t, memory.Config{SubscribeDelay: 200 * time.Millisecond}, func(w *world, net *memory.Network) {
		e := w.twin(net)
		w.registerAs(catalog.Registration{Instance: "w1", Endpoint: twinEndpoint, ReplayEndpoint: twinReplay})
		w.wait(110 * time.Millisecond)
		e.grow(0, 3)
		w.wait(time.Second)
		e.grow(3, 1)
		w.settle()
		w.want(letters(4), 4)
	})
}

func TestTwinRestart(t *testing.T) {
	runTwin(t, memory.Config{}, func(w *world, net *memory.Network) {
		e := w.twin(net)
		w.registerTwin()
		e.grow(0, 9)
		w.settle()
		w.want(letters(9), 9)
		if err := e.p.Close(); err != nil {
			t.Fatal(err)
		}
		w.wait(10 * time.Second)
		e = w.twin(net)
		e.publish(batch(store("", "xy")))
		w.wait(5 * time.Second)
		w.want(letters(9), 0, "xy", 2)
		equal(t, "lives", w.lives, 1)
		equal(t, "purged", len(w.purged), 1)
		equal(t, "state", w.source("w1").Ranks[0].State, Active)
	})
}

// Engines that push over the twin.
func TestTwinPush(t *testing.T) {
	runTwin(t, memory.Config{}, func(w *world, net *memory.Network) {
		w.registerAs(catalog.Registration{Instance: "w1", Endpoint: "tcp://*:5557", Topic: "kv@1@m"})
		w.registerAs(catalog.Registration{Instance: "w2", Endpoint: "tcp://*:5557", Topic: "kv@2@m"})
		for i, topic := range []string{"kv@1@m", "kv@2@m"} {
			p, err := net.NewPublisher(transport.PublisherConfig{Endpoint: "tcp://*:5557", Connect: true})
			if err != nil {
				t.Fatal(err)
			}
			w.settle()
			for s := range uint64(3) {
				if err := p.Publish(topic, s, batch(store(letters(int(s)), letters(3)[s:s+1]))); err != nil {
					t.Fatal(err)
				}
			}
			w.settle()
			equal(t, topic, w.score("abc", []string{"w1", "w2"}[i]), 3)
		}
	})
}
