package fanout

import (
	"fmt"
	"testing"
	"time"

	"github.com/kvcluster/kvcluster/cluster/state"
	"github.com/kvcluster/kvcluster/shard/catalog"
)

// large makes a node of eight that reads so many sources, with 512 partitions.
func large(b *testing.B, sources int) *paper {
	p := newPaperOf(b, 512, nil)
	p.mu.blind = true
	var names []string
	for i := range 8 {
		name := string(rune('a' + i))
		names = append(names, name)
		if i >= 3 {
			p.do(state.Command{Introduce: &state.Member{Name: name, ServerID: name, Boot: uint64(i + 1)}})
		}
		if i > 0 {
			p.fan.OnPeer(sessionTo(name, uint64(i)), true)
		}
	}
	var moves []state.Move
	for q := range uint32(512) {
		moves = append(moves, state.Move{Partition: q, To: names[q%8]})
	}
	p.do(state.Command{Begin: &state.Begin{Moves: moves}})
	for i := range moves {
		moves[i].To = names[(uint32(i)+1)%8]
	}
	p.do(state.Command{Begin: &state.Begin{Moves: moves}})
	for i := range sources {
		p.index++
		r := p.state.Apply(p.index, state.Command{Register: &state.Registration{Node: "a", Registration: catalog.Registration{
			Instance: fmt.Sprint("i", i), Group: catalog.GroupKey{Model: "m"}, BlockSize: 16, Endpoint: fmt.Sprint("tcp://e:", i),
		}}})
		if r.Err() != nil {
			b.Fatal(r.Err())
		}
	}
	p.fan.SetView(p.state.View())
	return p
}

// BenchmarkScan is the look at everything that each change of a session, a view or a
// fill causes, for 2,000 slots.
func BenchmarkScan(b *testing.B) {
	p := large(b, 2000)
	b.ReportAllocs()
	for b.Loop() {
		p.fan.scan(p.fan.table.Load(), time.Now(), nil)
	}
}

// BenchmarkSetView is one more entry of the log with 2,000 slots.
func BenchmarkSetView(b *testing.B) {
	p := large(b, 2000)
	b.ReportAllocs()
	for b.Loop() {
		p.do(state.Command{Introduce: &state.Member{Name: "a", ServerID: "a", Boot: 1}})
	}
}
