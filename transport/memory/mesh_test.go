package memory_test

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kvcluster/kvcluster/transport"
	"github.com/kvcluster/kvcluster/transport/memory"
	"github.com/kvcluster/kvcluster/transport/transporttest"
)

func TestMeshContract(t *testing.T) {
	for _, mode := range []struct {
		name string
		run  func(t *testing.T, name string, f func(t *testing.T))
	}{
		{"InBubble", func(t *testing.T, name string, f func(t *testing.T)) {
			t.Run(name, func(t *testing.T) { synctest.Test(t, f) })
		}},
		{"InRealTime", func(t *testing.T, name string, f func(t *testing.T)) { t.Run(name, f) }},
	} {
		t.Run(mode.name, func(t *testing.T) {
			var next atomic.Int64
			transporttest.RunMesh(t, transporttest.MeshHarness{
				New:          func(testing.TB) transport.MeshNetwork { return memory.New(memory.Config{}) },
				Fixed:        func(testing.TB) string { return fmt.Sprint("mem://fixed-", next.Add(1)) },
				BadEndpoints: []string{"", "mem://", "mem://with blank"},
				Run:          mode.run,
			})
		})
	}
}

// meshLog is a mesh whose messages are noted with their virtual time.
func meshLog(t *testing.T, net *memory.Network, name, bind string) (transport.Mesh, func() []string) {
	t.Helper()
	start := time.Now()
	var mu sync.Mutex
	var got []string
	m, err := net.NewMesh(transport.MeshConfig{Name: name, Bind: bind, Handler: func(from string, message []byte) {
		mu.Lock()
		defer mu.Unlock()
		got = append(got, fmt.Sprintf("%v %s:%s", time.Since(start), from, message))
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	return m, func() []string {
		mu.Lock()
		defer mu.Unlock()
		return append([]string(nil), got...)
	}
}

func TestMeshFaults(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := memory.New(memory.Config{})
		a, gotA := meshLog(t, net, "a", "mem://a")
		b, gotB := meshLog(t, net, "b", "mem://b")
		for _, err := range []error{a.SetPeer("b", "mem://b"), b.SetPeer("a", "mem://a")} {
			if err != nil {
				t.Fatal(err)
			}
		}
		fate := map[string][]time.Duration{"lost": {}, "twice": {time.Second, 3 * time.Second}, "late": {2 * time.Second}, "soon": {0}}
		net.SetMeshFault("a", "b", func(message []byte) []time.Duration { return fate[string(message)] })
		for _, m := range []string{"lost", "twice", "late", "soon"} {
			if !a.Send("b", []byte(m)) {
				t.Errorf("%s: the sender noticed", m)
			}
		}
		b.Send("a", []byte("other way"))
		time.Sleep(4 * time.Second)
		net.SetMeshFault("a", "b", nil)
		net.CutMesh("a", "b")
		a.Send("b", []byte("cut"))
		b.Send("a", []byte("one-way"))
		net.HealMesh("a", "b")
		net.PauseMesh("b", true)
		a.Send("b", []byte("waits 1"))
		a.Send("b", []byte("waits 2"))
		time.Sleep(time.Second)
		net.PauseMesh("b", false)
		synctest.Wait()
		want := []string{"0s a:soon", "1s a:twice", "2s a:late", "3s a:twice", "5s a:waits 1", "5s a:waits 2"}
		if diff := cmp.Diff(want, gotB()); diff != "" {
			t.Errorf("b (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff([]string{"0s b:other way", "4s b:one-way"}, gotA()); diff != "" {
			t.Errorf("a (-want +got):\n%s", diff)
		}
	})
}

// TestMeshDelayedMessageReachesSuccessor: what was meant for a dead node comes to
// the one that took its address, and what comes while there is none is lost.
func TestMeshDelayedMessageReachesSuccessor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := memory.New(memory.Config{})
		a, _ := meshLog(t, net, "a", "mem://a")
		first, _ := meshLog(t, net, "b", "mem://b")
		if err := a.SetPeer("b", "mem://b"); err != nil {
			t.Fatal(err)
		}
		delays := []time.Duration{time.Second, 3 * time.Second}
		net.SetMeshFault("a", "b", func([]byte) []time.Duration { return delays })
		a.Send("b", []byte("x"))
		first.Close()
		time.Sleep(2 * time.Second)
		_, got := meshLog(t, net, "b", "mem://b")
		time.Sleep(2 * time.Second)
		if diff := cmp.Diff([]string{"1s a:x"}, got()); diff != "" {
			t.Errorf("successor (-want +got):\n%s", diff)
		}
	})
}
