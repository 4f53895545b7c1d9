package fanout

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/kvcluster/kvcluster/cluster/copywire"
	"github.com/kvcluster/kvcluster/cluster/state"
	"github.com/kvcluster/kvcluster/indexer"
	"github.com/kvcluster/kvcluster/indexer/reference"
	"github.com/kvcluster/kvcluster/shard/catalog"
	"github.com/kvcluster/kvcluster/transport/link"
)

// paper is a fan-out whose links and owner write down what they are told.
type paper struct {
	t     testing.TB
	fan   *Fanout
	state *state.State
	index uint64
	x     indexer.Index

	mu struct {
		sync.Mutex
		sent    map[link.Session][]copywire.Message
		numbers map[link.Session]uint64
		err     map[string]error // of Send, by peer
		blind   bool             // nothing is kept of what is sent
		local   []string
		open    map[indexer.PartitionID]bool
		renewed int
	}
}

func (p *paper) Send(s link.Session, payload []byte) (uint64, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.mu.err[s.Peer]; err != nil {
		return 0, err
	}
	p.mu.numbers[s]++
	if !p.mu.blind {
		m, err := copywire.Decode(payload)
		if err != nil {
			p.t.Errorf("sent to %v: %v", s, err)
		}
		p.mu.sent[s] = append(p.mu.sent[s], m)
	}
	return p.mu.numbers[s], nil
}

func (p *paper) Call(context.Context, string, string, []byte) ([]byte, error) {
	return nil, errors.New("nobody answers")
}

func (p *paper) note(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.mu.blind {
		p.mu.local = append(p.mu.local, fmt.Sprintf(format, args...))
	}
}

func (p *paper) OpenLocal(l copywire.SlotLife, _ uint64, parts []indexer.PartitionID) {
	p.note("open %d %v", l.Slot, parts)
	for _, q := range parts {
		p.mu.open[q] = true
	}
}
func (p *paper) BeginLocal(copywire.SlotLife, uint64, indexer.PartitionID) bool       { return true }
func (p *paper) EndLocal(copywire.SlotLife, uint64, indexer.PartitionID, uint64) bool { return true }
func (p *paper) CloseLocal(l copywire.SlotLife, _ uint64, parts []indexer.PartitionID) {
	p.note("close %d %v", l.Slot, parts)
}
func (*paper) CarryLocal(copywire.SlotLife, uint64, []copywire.Label) []indexer.PartitionID {
	return nil
}

func (p *paper) NoteLocal(h indexer.Header) bool { return p.mu.open[h.Partition] }
func (p *paper) CursorLocal(c copywire.Cursor)   { p.note("cursor %d", c.Sequence) }

// newPaper makes a node a of a cluster with b and c: a and b own everything.
func newPaper(t testing.TB, tune func(*Config)) *paper {
	p := newPaperOf(t, 2, tune)
	for q := range uint32(2) {
		p.do(state.Command{Begin: &state.Begin{Moves: []state.Move{{Partition: q, To: "a"}}}})
		p.do(state.Command{Begin: &state.Begin{Moves: []state.Move{{Partition: q, To: "b"}}}})
	}
	return p
}

// newPaperOf makes one in which nobody owns anything.
func newPaperOf(t testing.TB, partitions uint32, tune func(*Config)) *paper {
	p := &paper{t: t, state: state.New(), x: reference.New(reference.Config{})}
	p.mu.sent, p.mu.numbers = map[link.Session][]copywire.Message{}, map[link.Session]uint64{}
	p.mu.err, p.mu.open = map[string]error{}, map[indexer.PartitionID]bool{}
	cfg := Config{
		Name: "a", Index: p.x, Owner: p, Links: p,
		Report: func(context.Context, state.Report) error { return nil },
		Renew: func(indexer.GroupID, indexer.Slot, uint64) {
			p.mu.Lock()
			p.mu.renewed++
			p.mu.Unlock()
		},
	}
	if tune != nil {
		tune(&cfg)
	}
	var err error
	if p.fan, err = New(cfg); err != nil {
		t.Fatal(err)
	}
	p.do(state.Command{Found: &state.Founding{ClusterID: "c", Partitions: partitions, Replicas: 2}})
	for i, name := range []string{"a", "b", "c"} {
		p.do(state.Command{Introduce: &state.Member{Name: name, ServerID: name, Boot: uint64(i + 1)}})
	}
	return p
}

func (p *paper) do(c state.Command) {
	p.t.Helper()
	p.index++
	if r := p.state.Apply(p.index, c); r.Err() != nil {
		p.t.Fatal(r.Err())
	}
	p.fan.SetView(p.state.View())
}

func (p *paper) register(instance string) copywire.SlotLife {
	p.do(state.Command{Register: &state.Registration{Node: "a", Registration: catalog.Registration{
		Instance: instance, Group: catalog.GroupKey{Model: "m"}, BlockSize: 16, Endpoint: "tcp://" + instance + ":1",
	}}})
	wk, _ := p.state.View().Catalog.Worker(instance)
	return copywire.SlotLife{Group: indexer.GroupID(wk.Group.ID), Slot: indexer.Slot(wk.Ranks[0].Slot), Life: wk.Ranks[0].Life}
}

func sessionTo(peer string, number uint64) link.Session {
	return link.Session{Peer: peer, SenderBoot: 1, ReceiverBoot: 2, Number: number}
}

// frame makes a frame that stores one block in a run of its own.
func frame(l copywire.SlotLife, p indexer.PartitionID, seq uint64) indexer.Frame {
	var b indexer.FrameBuilder
	b.Reset(indexer.Header{Group: l.Group, Partition: p, Slot: l.Slot, Life: l.Life, Tenure: l.Life, Sequence: seq})
	locals, engines := b.Store(indexer.Device, indexer.Run(seq), 0, indexer.Parent{}, 1)
	locals[0], engines[0] = seq, seq
	return b.Frame()
}

func (p *paper) kinds(s link.Session) (out []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, m := range p.mu.sent[s] {
		out = append(out, m.Kind.String())
	}
	return out
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func applied(t testing.TB, w indexer.Writer, want uint64) {
	t.Helper()
	if got := w.Applied(); got != want {
		t.Errorf("%d of %d frames acknowledged, want %d", got, w.Written(), want)
	}
}
