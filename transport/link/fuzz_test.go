package link

import (
	"context"
	"testing"

	"github.com/kvcluster/kvcluster/transport/memory"
)

// discard is a user that does nothing.
type discard struct{}

func (discard) OnSession(Session)               {}
func (discard) OnFrame(Session, uint64, []byte) {}
func (discard) OnSilence(Session)               {}
func (discard) OnResume(Session)                {}
func (discard) OnPeer(Session, bool)            {}
func (discard) OnAck(Session, uint64)           {}
func (discard) OnLapse(Session, bool)           {}

// FuzzReceive: no bytes of a peer harm a hub, whatever state its sessions are in.
// Two messages, because some do harm only after another.
func FuzzReceive(f *testing.F) {
	tag := clusterTag("test")
	in := Session{SenderBoot: 9, ReceiverBoot: 1, Number: 1}
	out := Session{SenderBoot: 1, ReceiverBoot: 9, Number: 7}
	frame := []byte{2, 0, 0, 0, 'h', 'i'}
	opened := open{9, 1, "test"}.append(nil, tag)
	granted := accept{out, 1, 5, 1000}.append(nil, tag)
	for _, pair := range [][2][]byte{
		{opened, append(data{in, 1, 1, 1, nil}.append(nil, tag), frame...)},
		{opened, append(data{in, 1, 1 << 63, 1 << 63, nil}.append(nil, tag), frame...)},
		{opened, data{in, 1, ^uint64(0), ^uint64(0), nil}.append(nil, tag)},
		{granted, ack{out, 6, 0, 0, ^uint64(0)}.append(nil, tag)},
		{granted, appendSession(appendHeader(nil, kindUnknown, tag), out)},
		{request{9, 1, -1, "m", nil}.append(nil, tag), appendU64(appendHeader(nil, kindCancel, tag), 9, 1)},
		{response{boot: 1, id: 1, failed: true, code: "busy"}.append(nil, tag), appendRefusal(nil, tag, "no")},
	} {
		f.Add(pair[0], pair[1])
	}
	f.Fuzz(func(t *testing.T, first, second []byte) {
		h, err := New(testConfig("a", 1, "mem://a"), memory.New(memory.Config{}), discard{})
		if err != nil {
			t.Fatal(err)
		}
		if err := h.SetPeers(map[string]string{"b": "mem://b"}); err != nil {
			t.Fatal(err)
		}
		h.Handle("m", func(context.Context, string, []byte) ([]byte, error) { return nil, nil })
		close(h.ready)
		h.running.Store(true)
		defer h.calls.end()
		h.receive("b", first)
		h.receive("b", second)
		h.tick()
		h.flush()
		for s, st := range h.PeerStats() {
			if st.EarlyBytes > h.cfg.Window || st.Received > uint64(len(first)+len(second)) {
				t.Errorf("%s: %+v", s, st)
			}
		}
	})
}
