package mockengine

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvcluster/kvcluster/transport"
	"github.com/kvcluster/kvcluster/transport/engine"
	"github.com/kvcluster/kvcluster/transport/memory"
)

// listener subscribes to one publisher and asks for a replay from 0 when it is told.
type listener struct {
	decoder *engine.Decoder
	live    []uint64 // sequences
	events  int
	bad     int
	replies []uint64
	ended   bool
	ups     int
	downs   int
}

func (l *listener) OnMessage(frames [][]byte) {
	_, seq, payload, err := engine.ParseLive(frames)
	if err != nil {
		l.bad++
		return
	}
	b, err := l.decoder.Decode(payload)
	if err != nil {
		l.bad++
		return
	}
	l.live = append(l.live, seq)
	l.events += len(b.Events)
}
func (l *listener) OnConnect()    { l.ups++ }
func (l *listener) OnDisconnect() { l.downs++ }

// replays hears the answers to a replay request.
type replays struct{ *listener }

func (r replays) OnReply(frames [][]byte) {
	_, seq, _, end, err := engine.ParseReplay(frames)
	switch {
	case err != nil:
		r.bad++
	case end:
		r.ended = true
	default:
		r.replies = append(r.replies, seq)
	}
}
func (r replays) OnConnect()    {}
func (r replays) OnDisconnect() {}

// Over a network that behaves as the real one: what is sent arrives in order, what
// was withheld can be fetched, and a restart is a new connection with a new
// sequence.
func TestOverMemoryNetwork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := memory.New(memory.Config{})
		log := &MemoryLog{}
		f, err := New(Config{
			Workers: 3, Formats: []Format{VLLMMap, SGLangArray, TRTLLM}, Trace: traffic(t, 300), Capacity: 500, Speedup: 10,
			Settle: 2 * time.Second, Stay: true, Sink: log,
			Faults: []Fault{
				{Kind: Restart, Batch: 10, Worker: -1}, {Kind: Lose, Count: 3, Batch: 30, Worker: -1}, {Kind: Garbage, Count: 6, Batch: 40, Worker: -1},
			},
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
		ctx, cancel := context.WithCancel(t.Context())
		listeners := make([]*listener, 3)
		asked := make([]transport.ReplaySocket, 3)
		loop.Post(func() {
			for i, at := range f.Endpoints() {
				listeners[i] = &listener{decoder: engine.NewDecoder(engine.DecoderConfig{})}
				if _, err := loop.Subscribe(transport.SubscribeConfig{Endpoint: at.Publish}, listeners[i]); err != nil {
					t.Error(err)
				}
				if asked[i], err = loop.OpenReplay(at.Replay, replays{listeners[i]}); err != nil {
					t.Error(err)
				}
			}
		})
		ended := make(chan error, 2)
		go func() { ended <- loop.Run(ctx) }()
		go func() { ended <- f.Run(ctx) }()
		<-f.Done()
		time.Sleep(time.Second)
		loop.Post(func() {
			for _, s := range asked {
				if err := s.Request(0); err != nil {
					t.Error(err)
				}
			}
		})
		time.Sleep(time.Second)
		synctest.Wait()
		cancel()
		for range 2 {
			if err := <-ended; err != nil {
				t.Error(err)
			}
		}
		for i, l := range listeners {
			var life []Record
			for _, r := range log.Records(i) {
				if r.Kind == RecordLife {
					life = nil // only the last life can be replayed
				}
				life = append(life, r)
			}
			first, events, sent := life[0].Sequence, 0, 0
			for _, r := range log.Records(i) {
				if r.Kind == RecordLife {
					continue
				}
				events++
				if r.Fate == Sent {
					sent++
				}
			}
			last := f.publishers[i].sequence - 1
			var want []uint64
			for s := first; s <= last; s++ {
				want = append(want, s)
			}
			if d := diff(want, l.replies); d != "" || !l.ended {
				t.Errorf("publisher %d: replayed (end %v) (-want +got):\n%s", i, l.ended, d)
			}
			if l.ups != 2 || l.downs < 1 {
				t.Errorf("publisher %d: %d connections, %d losses, want 2 and at least 1", i, l.ups, l.downs)
			}
			if sent == events || l.events > sent || l.events < sent*9/10 {
				t.Errorf("publisher %d: %d events heard, %d sent, %d recorded", i, l.events, sent, events)
			}
			lost := map[uint64]bool{}
			for s := first; s <= last; s++ {
				lost[s] = true
			}
			for k := len(l.live) - 1; k >= 0 && l.live[k] >= first && (k == len(l.live)-1 || l.live[k] < l.live[k+1]); k-- {
				delete(lost, l.live[k])
			}
			for _, r := range life {
				if r.Kind != RecordLife && lost[r.Sequence] && r.Fate == Sent && r.Sequence > first+20 {
					t.Errorf("publisher %d: batch %d was sent and not heard", i, r.Sequence)
				}
			}
			if l.bad != 6 {
				t.Errorf("publisher %d: %d messages are garbage, want 6", i, l.bad)
			}
		}
	})
}
