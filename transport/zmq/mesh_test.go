package zmq_test

import (
	"fmt"
	"path/filepath"
	"testing"
	"time"

	zmq4 "github.com/pebbe/zmq4"

	"github.com/kvcluster/kvcluster/transport"
	"github.com/kvcluster/kvcluster/transport/transporttest"
	"github.com/kvcluster/kvcluster/transport/zmq"
)

func TestMeshContract(t *testing.T) {
	next := 0
	for scheme, fixed := range map[string]func(testing.TB) string{
		"tcp": freePort,
		"ipc": func(t testing.TB) string {
			next++
			return "ipc://" + filepath.Join(t.TempDir(), fmt.Sprint(next))
		},
	} {
		t.Run(scheme, func(t *testing.T) {
			transporttest.RunMesh(t, transporttest.MeshHarness{
				New:          func(t testing.TB) transport.MeshNetwork { return newNetwork(t, zmq.Config{}) },
				Fixed:        fixed,
				BadEndpoints: []string{"", "tcp://", "127.0.0.1:1", "udp://127.0.0.1:1", "tcp://127.0.0.1:65536"},
				Run:          subtest,
			})
		})
	}
}

// TestMeshStranger: whoever talks to the port without being a node is not heard and
// harms nobody.
func TestMeshStranger(t *testing.T) {
	net := newNetwork(t, zmq.Config{})
	got := make(chan string, 100)
	a, err := net.NewMesh(transport.MeshConfig{Name: "a", Bind: "tcp://127.0.0.1:*", Handler: func(from string, message []byte) {
		got <- from + ":" + string(message)
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	ctx, err := zmq4.NewContext()
	if err != nil {
		t.Fatal(err)
	}
	defer ctx.Term()
	for _, id := range []string{"", "x", "name-without-boot-id-0123456789", "b l/0000000000000001", "good/0000000000000001"} {
		s, err := ctx.NewSocket(zmq4.DEALER)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		s.SetLinger(0)
		if id != "" {
			s.SetIdentity(id)
		}
		if err := s.Connect(a.Endpoint()); err != nil {
			t.Fatal(err)
		}
		s.Send("one frame from "+id, 0)
		s.SendMessage("two", "frames")
		s.Send("another", 0)
	}
	for _, want := range []string{"good:one frame from good/0000000000000001", "good:another"} {
		select {
		case g := <-got:
			if g != want {
				t.Fatalf("got %q, want %q", g, want)
			}
		case <-time.After(20 * time.Second):
			t.Fatalf("%q did not come", want)
		}
	}
}

// TestMeshBoundedQueue: a peer that takes nothing costs its queue and no more, and
// nobody waits for it.
func TestMeshBoundedQueue(t *testing.T) {
	net := newNetwork(t, zmq.Config{})
	block := make(chan struct{})
	slow, err := net.NewMesh(transport.MeshConfig{Name: "slow", Bind: "tcp://127.0.0.1:*", Handler: func(string, []byte) { <-block }})
	if err != nil {
		t.Fatal(err)
	}
	defer slow.Close()
	defer close(block)
	got := make(chan struct{}, 1000)
	quick, err := net.NewMesh(transport.MeshConfig{Name: "quick", Bind: "tcp://127.0.0.1:*", Handler: func(string, []byte) { got <- struct{}{} }})
	if err != nil {
		t.Fatal(err)
	}
	defer quick.Close()
	a, err := net.NewMesh(transport.MeshConfig{Name: "a", Bind: "tcp://127.0.0.1:*", QueueBytes: 1 << 20, Handler: func(string, []byte) {}})
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	for name, m := range map[string]transport.Mesh{"slow": slow, "quick": quick} {
		if err := a.SetPeer(name, m.Endpoint()); err != nil {
			t.Fatal(err)
		}
	}
	// Until it is full and stays full: queue, libzmq's marks and the system's buffers.
	message := make([]byte, 64<<10)
	sent, refusedSince := 0, time.Time{}
	for deadline := time.Now().Add(30 * time.Second); ; {
		if a.Send("slow", message) {
			sent++
			refusedSince = time.Time{}
			continue
		}
		now := time.Now()
		if refusedSince.IsZero() {
			refusedSince = now
		}
		if sent > 0 && now.Sub(refusedSince) > 300*time.Millisecond {
			break
		}
		if now.After(deadline) {
			t.Fatalf("no end after %d messages", sent)
		}
		time.Sleep(time.Millisecond)
	}
	if limit := 3 * 256; sent > limit {
		t.Errorf("%d messages of 64 KiB were taken for a peer that takes none, want at most %d", sent, limit)
	}
	for range 100 {
		for deadline := time.Now().Add(20 * time.Second); !a.Send("quick", message); time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatal("the other peer cannot be reached")
			}
		}
		select {
		case <-got:
		case <-time.After(20 * time.Second):
			t.Fatal("the other peer is held up")
		}
	}
}
