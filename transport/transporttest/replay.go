package transporttest

import (
	"bytes"
	"fmt"
	"slices"
	"testing"

	"github.com/kvcluster/kvcluster/transport"
)

var endMarker = bytes.Repeat([]byte{0xff}, 8)

// reply is a replayed batch as every shape has it: the last two frames.
type reply struct {
	topic   string
	seq     uint64
	payload string
}

// replies reads the messages of a replay up to and without the end marker, and
// fails on any other shape than the one wanted.
func replies(t *testing.T, messages [][][]byte, fourFrames bool) (out []reply, end bool) {
	t.Helper()
	want := 2
	if fourFrames {
		want = 3
	}
	for i, m := range messages {
		if len(m) != want {
			t.Fatalf("reply %d has %d frames behind the delimiter, want %d: %q", i, len(m), want, m)
		}
		seq, payload := m[want-2], m[want-1]
		topic := ""
		if fourFrames {
			topic = string(m[0])
		}
		if len(payload) == 0 && bytes.Equal(seq, endMarker) {
			if topic != "" {
				t.Errorf("the end marker has topic %q", topic)
			}
			return out, true
		}
		out = append(out, reply{topic, bigEndian(seq), string(payload)})
	}
	return out, false
}

// ended reports a message that ends a replay.
func ended(s Seen) bool {
	return slices.ContainsFunc(s.Messages, func(m [][]byte) bool {
		return len(m) >= 2 && len(m[len(m)-1]) == 0 && bytes.Equal(m[len(m)-2], endMarker)
	})
}

func testReplay(t *testing.T, h Harness, fourFrames bool) {
	net := h.New(t)
	p := publisher(t, net, transport.PublisherConfig{
		Endpoint: h.Bind(t), ReplayEndpoint: h.Bind(t), FourFrames: fourFrames,
	})
	l, r := start(t, net, "replay"), NewRecorder()
	s := openReplay(t, l, p.ReplayEndpoint(), r)
	var all []reply
	for seq := uint64(10); seq < 110; seq++ {
		topic, payload := fmt.Sprint("t", seq%3), fmt.Sprint("payload ", seq)
		send := p.Publish
		if seq%5 == 0 {
			send = p.Record // a batch that was lost on the way
		}
		if err := send(topic, seq, []byte(payload)); err != nil {
			t.Fatalf("batch %d: %v", seq, err)
		}
		if !fourFrames {
			topic = ""
		}
		all = append(all, reply{topic, seq, payload})
	}
	check := func(start uint64, want []reply) {
		t.Helper()
		r.Forget()
		request(t, l, s, start)
		seen := r.Await(t, "the end of the replay", ended)
		got, _ := replies(t, seen.Messages, fourFrames)
		if !slices.Equal(got, want) {
			t.Errorf("replay from %d: got %d batches %v, want %d", start, len(got), got, len(want))
		}
	}
	check(0, all) // starts later than asked: there is nothing earlier
	check(10, all)
	check(60, all[50:])
	check(109, all[99:])
	check(110, nil)
	check(1<<63, nil)
	if err := p.ForgetReplay(); err != nil {
		t.Fatalf("forget: %v", err)
	}
	check(0, nil)
	if c := r.Seen(); c.Connects != 1 || c.Disconnects != 0 {
		t.Errorf("%d connects, %d disconnects", c.Connects, c.Disconnects)
	}
}

func testReplayWaitsForPeer(t *testing.T, h Harness) {
	net := h.New(t)
	l, r := start(t, net, "replay"), NewRecorder()
	address := h.Fixed(t)
	s := openReplay(t, l, address, r)
	request(t, l, s, 3)
	p := publisher(t, net, transport.PublisherConfig{Endpoint: h.Bind(t), ReplayEndpoint: address})
	for seq := range uint64(5) {
		publish(t, p, "", seq, []byte("x"))
	}
	seen := r.Await(t, "the end of the replay", ended)
	if seen.Connects != 1 {
		t.Errorf("%d connects", seen.Connects)
	}
	// The request may have come before the batches.
	got, _ := replies(t, seen.Messages, false)
	if len(got) > 2 || len(got) == 2 && (got[0].seq != 3 || got[1].seq != 4) {
		t.Errorf("got %v, want what there was of 3 and 4", got)
	}
}

func testReplayRestart(t *testing.T, h Harness) {
	net := h.New(t)
	l, r := start(t, net, "replay"), NewRecorder()
	address := h.Fixed(t)
	s := openReplay(t, l, address, r)
	for life := 1; life <= 2; life++ {
		p := publisher(t, net, transport.PublisherConfig{Endpoint: h.Bind(t), ReplayEndpoint: address})
		publish(t, p, "", 0, fmt.Append(nil, "life ", life))
		r.Await(t, "OnConnect", func(s Seen) bool { return s.Connects == life })
		r.Forget()
		request(t, l, s, 0)
		seen := r.Await(t, "the end of the replay", ended)
		got, _ := replies(t, seen.Messages, false)
		if want := []reply{{"", 0, fmt.Sprint("life ", life)}}; !slices.Equal(got, want) {
			t.Errorf("got %v, want %v", got, want)
		}
		closePublisher(t, p)
		r.Await(t, "OnDisconnect", func(s Seen) bool { return s.Disconnects == life })
	}
}

func testReplayBuffer(t *testing.T, h Harness) {
	net := h.New(t)
	p := publisher(t, net, transport.PublisherConfig{Endpoint: h.Bind(t), ReplayEndpoint: h.Bind(t), Buffer: 7})
	l, r := start(t, net, "replay"), NewRecorder()
	s := openReplay(t, l, p.ReplayEndpoint(), r)
	for seq := uint64(1); seq <= 100; seq++ {
		publish(t, p, "", seq, []byte("x"))
		if seq != 5 && seq != 7 && seq != 8 && seq != 100 {
			continue
		}
		r.Forget()
		request(t, l, s, 0)
		seen := r.Await(t, "the end of the replay", ended)
		got, _ := replies(t, seen.Messages, false)
		var seqs []uint64
		for _, m := range got {
			seqs = append(seqs, m.seq)
		}
		first := uint64(1)
		if seq > 7 {
			first = seq - 6
		}
		if want := numbers(first, seq); !slices.Equal(seqs, want) {
			t.Errorf("after %d batches the buffer of 7 has %v, want %v", seq, seqs, want)
		}
	}
}

var _ transport.ReplayHandler = (*Recorder)(nil)
