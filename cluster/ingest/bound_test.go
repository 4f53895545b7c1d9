package ingest

import (
	"testing"
	"time"

	"github.com/kvcluster/kvcluster/shard/catalog"
)

const pushed = "tcp://*:5557"

// pusher is an engine that connects to us.
func (w *world) pusher(topic string) *mockEngine {
	return &mockEngine{net: w.net, endpoint: pushed, topic: topic, push: true, down: true}
}

func (w *world) expect(instance, topic string, rank uint32) {
	w.registerAs(catalog.Registration{Instance: instance, Rank: rank, Endpoint: pushed, Topic: topic})
}

// Engines that push share a socket, and are told apart by their whole topic.
func TestPushedTopics(t *testing.T) {
	run(t, []option{func(c *Config, _ *Deps) { c.Loops = 3 }}, func(w *world) {
		w.expect("w1", "kv@pod-1@m", 0)
		w.expect("w2", "kv@pod-2@m", 0)
		p1, p2, p10 := w.pusher("kv@pod-1@m"), w.pusher("kv@pod-2@m"), w.pusher("kv@pod-1@m0")
		p1.connect()
		p2.connect()
		p10.connect()
		for i := range 5 {
			grow(p1, i, 1)
			p10.publish(batch(store("", "z")))
		}
		grow(p2, 0, 3)
		w.want("abcde", 5, "z", 0)
		equal(t, "w2", w.score("abcde", "w2"), 3)
		s := w.source("w1")
		equal(t, "gaps", s.Counters.Gaps, 0)
		equal(t, "other topics", s.Counters.OtherTopic, 5)
		equal(t, "binds", s.Binds, true)
	})
}

// Several ranks push to one port, each with a sequence of its own.
func TestPushedRanks(t *testing.T) {
	run(t, nil, func(w *world) {
		w.expect("w1", "t", 0)
		w.expect("w1", "t", 1)
		p0, p1 := w.pusher("t"), w.pusher("t")
		p0.connect()
		p1.connect()
		p1.next = 50
		p0.publish(rankBatch(0, store("", "a")))
		p1.publish(rankBatch(1, store("", "x")))
		p0.publish(rankBatch(0, store("a", "b")))
		p1.publish(rankBatch(1, store("x", "y")))
		equal(t, "rank 0", w.score("ab", 0), 2)
		equal(t, "rank 1", w.score("xy", 1), 2)
		s := w.source("w1")
		equal(t, "gaps", s.Counters.Gaps, 0)
		equal(t, "restarts", s.Counters.Restarts, 0)
		// A gap of one rank is no loss of the other.
		p0.record(rankBatch(0, remove("ab")))
		p0.publish(rankBatch(0, store("", "p")))
		w.settle()
		equal(t, "rank 0", w.score("ab", 0), 0)
		equal(t, "rank 0 now", w.score("p", 0), 1)
		equal(t, "rank 1", w.score("xy", 1), 2)
		equal(t, "lives", w.lives, 1)
	})
}

// A pushing engine restarts: its sequence goes back after a new connection.
func TestPushedRestart(t *testing.T) {
	run(t, nil, func(w *world) {
		w.expect("w1", "t", 0)
		w.expect("w2", "u", 0)
		p, o := w.pusher("t"), w.pusher("u")
		p.connect()
		o.connect()
		grow(p, 0, 5)
		grow(o, 0, 2)
		p.disconnect()
		grow(o, 2, 1) // it speaks between: its connection is not the one that went
		p.next, p.buffer = 0, nil
		p.connect()
		p.publish(batch(store("", "x")))
		grow(o, 3, 1)
		w.settle()
		w.want("abcde", 0, "x", 1)
		equal(t, "w2", w.score("abcd", "w2"), 4)
		equal(t, "lives", w.lives, 1)
	})
}

// The new run of a pushing engine happens to continue the numbers.
func TestPushedRestartWithFittingNumber(t *testing.T) {
	run(t, nil, func(w *world) {
		w.expect("w1", "t", 0)
		p := w.pusher("t")
		p.connect()
		grow(p, 0, 1)
		p.restart(1)
		p.publish(batch(store("", "x")))
		w.settle()
		w.want("a", 0, "x", 1)
		equal(t, "lives", w.lives, 1)
		// More engines that connect are no reason to doubt this one.
		for range 5 {
			w.pusher("other").connect()
			p.publish(batch(store("", "y")))
		}
		w.want("x", 1, "y", 1)
		equal(t, "lives", w.lives, 1)
	})
}

// Two publishers under one name: nothing of either can be credited, and it is said.
func TestPushedConflict(t *testing.T) {
	run(t, nil, func(w *world) {
		w.expect("w1", "t", 0)
		a, b := w.pusher("t"), w.pusher("t")
		a.connect()
		b.connect()
		a.next = 100
		a.publish(batch(store("", "a")))
		b.publish(batch(store("", "b"))) // 0: went back, and nobody connected since
		w.want("a", 0, "b", 0)
		a.publish(batch(store("", "a")))
		b.publish(batch(store("", "b")))
		w.settle()
		w.want("a", 0, "b", 0)
		s := w.source("w1")
		equal(t, "state", s.Ranks[0].State, Failed)
		equal(t, "conflicts", s.Counters.Conflicts, 3)
		b.disconnect()
		a.publish(batch(store("", "ac")))
		w.settle()
		w.want("ac", 2, "b", 0)
		equal(t, "state", w.source("w1").Ranks[0].State, Active)
	})
}

// Without a registered topic the first publisher's topic is taken, until it goes.
func TestPushedWithoutTopic(t *testing.T) {
	run(t, nil, func(w *world) {
		w.expect("w1", "", 0)
		a, b := w.pusher("kv-events"), w.pusher("kv-events-2")
		a.connect()
		b.connect()
		grow(a, 0, 3)
		b.publish(batch(store("", "x")))
		w.want("abc", 3, "x", 0)
		equal(t, "other topics", w.source("w1").Counters.OtherTopic, 1)
		a.disconnect()
		b.publish(batch(store("", "y")))
		w.settle()
		w.want("abc", 0, "x", 0, "y", 1)
		equal(t, "lives", w.lives, 1)
	})
}

func TestPushedReplay(t *testing.T) {
	run(t, nil, func(w *world) {
		p := w.pusher("t")
		p.replay = "tcp://pod:5558"
		w.net.replays[p.replay] = p
		for i := range 4 {
			p.record(batch(store(letters(i), letters(4)[i:i+1])))
		}
		w.registerAs(catalog.Registration{Instance: "w1", Endpoint: pushed, ReplayEndpoint: p.replay, Topic: "t"})
		p.connect()
		p.publish(batch(store("abcd", "e")))
		w.want("abcde", 5)
		// It reconnects; the numbers fit, and the replay proves it.
		p.disconnect()
		p.connect()
		p.publish(batch(store("abcde", "f")))
		w.settle()
		w.want("abcdef", 6)
		equal(t, "lives", w.asked, 0)
	})
}

// The port is taken: shown as failed, and tried again.
func TestPushedAddressInUse(t *testing.T) {
	run(t, nil, func(w *world) {
		w.net.bound[pushed] = &scriptSub{}
		w.expect("w1", "t", 0)
		s := w.source("w1")
		equal(t, "state", s.State, Failed)
		if s.LastError == "" {
			t.Error("no error shown")
		}
		w.net.mu.Lock()
		delete(w.net.bound, pushed)
		w.net.mu.Unlock()
		w.wait(5 * time.Second)
		p := w.pusher("t")
		p.connect()
		grow(p, 0, 2)
		w.want("ab", 2)
		equal(t, "state", w.source("w1").Ranks[0].State, Active)
	})
}
