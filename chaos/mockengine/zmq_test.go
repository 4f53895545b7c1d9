package mockengine

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/kvcluster/kvcluster/transport/engine"
	"github.com/kvcluster/kvcluster/transport/zmq"
)

// fetched hears replay replies and hands them to the test.
type fetched struct{ replies chan string }

func (f *fetched) OnReply(frames [][]byte) {
	_, seq, payload, end, err := engine.ParseReplay(frames)
	switch {
	case err != nil:
		f.replies <- err.Error()
	case end:
		f.replies <- "end"
	default:
		f.replies <- fmt.Sprintf("%d of %d bytes", seq, len(payload))
	}
}
func (f *fetched) OnConnect()    {}
func (f *fetched) OnDisconnect() {}

// Over real sockets: after a restart that has to bind the same ports again, the
// replay socket gives exactly the batches of the new life.
func TestOverRealSockets(t *testing.T) {
	net, err := zmq.New(zmq.Config{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer net.Close()
	f, err := New(Config{
		Workers: 2, Formats: []Format{VLLMMap, SGLangMap}, Trace: traffic(t, 120), Capacity: 500, MaxBatchRate: 1e6, Stay: true,
		Faults: []Fault{{Kind: Restart, Batch: 20, Worker: -1}, {Kind: Lose, Count: 4, Batch: 30, Worker: -1}},
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Open(net); err != nil {
		t.Fatal(err)
	}
	loop, err := net.NewLoop("test")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	ended := make(chan error, 2)
	go func() { ended <- loop.Run(ctx) }()
	go func() { ended <- f.Run(ctx) }()
	select {
	case <-f.Done():
	case <-ctx.Done():
		t.Fatalf("the fleet is not done: %+v", f.Stats())
	}
	for i, at := range f.Endpoints() {
		h := &fetched{replies: make(chan string, 4096)}
		failed := make(chan error, 1)
		loop.Post(func() {
			s, err := loop.OpenReplay(at.Replay, h)
			if err == nil {
				err = s.Request(0)
			}
			failed <- err
		})
		if err := <-failed; err != nil {
			t.Fatal(err)
		}
		want := f.PublisherStats(i).Batches - 20
		for n := uint64(0); ; n++ {
			var got string
			select {
			case got = <-h.replies:
			case <-ctx.Done():
				t.Fatalf("publisher %d: after %d of %d replies nothing comes", i, n, want)
			}
			if got == "end" {
				if n != want {
					t.Errorf("publisher %d: %d batches replayed, want %d", i, n, want)
				}
				break
			}
			var seq uint64
			if _, err := fmt.Sscanf(got, "%d of", &seq); err != nil || seq != n {
				t.Fatalf("publisher %d: reply %d is %q", i, n, got)
			}
		}
	}
	cancel()
	for range 2 {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}
