package owner

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kvcluster/kvcluster/cluster/copywire"
)

func fetch(s *sender, token uint64) ([]copywire.Copy, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	return copywire.Fetch(ctx, s.call, token, 1<<30)
}

func dumpAtFence(w *world) error {
	a, s, err := opened(w)
	if err != nil {
		return err
	}
	w.index.shut()
	a.send(copywire.AppendFrame(nil, s.frame(0, 2)))
	a.send(copywire.AppendFrame(nil, s.drop(5, 1)))
	want := []string{s.want(0), s.want(5), ""}
	seq := []uint64{3, 4, 0}
	a.send(copywire.AppendFence(nil, 77, s.SlotLife, list(0, 5, 6)))
	a.send(copywire.AppendFrame(nil, s.frame(0, 1)))
	a.send(copywire.AppendFrame(nil, s.drop(5, 1)))
	time.Sleep(100 * time.Millisecond)
	w.index.open()
	d, err := fetch(a, 77)
	if err != nil {
		return err
	}
	for i, c := range d {
		if text(c.Stretches) != want[i] || c.Open != (i < 2) || c.Sequence != seq[i] || i < 2 && c.Tenure != 4 {
			return fmt.Errorf("dump of partition %d: %+v, want %s at %d", c.Partition, c, want[i], seq[i])
		}
	}
	if len(d) != 3 || w.owner.Stats().DumpsKept != 0 {
		return fmt.Errorf("%d copies, %d dumps kept", len(d), w.owner.Stats().DumpsKept)
	}
	return errors.Join(a.settled(), w.is("behind the fence", s, 0), w.is("behind the fence", s, 5))
}

func dumpNotOpen(w *world) error {
	a, s, err := opened(w)
	if err != nil {
		return err
	}
	s.frame(0, 1)
	a.send(s.fill(0)[0][:])
	a.send(copywire.AppendFill(nil, true, false, clearFrame(s.header(5))))
	a.send(copywire.AppendFence(nil, 1, s.SlotLife, list(0, 5, 9)))
	a.send(copywire.AppendFence(nil, 2, newStream(3, 11, 4).SlotLife, list(0)))
	d, err := fetch(a, 1)
	if err != nil || len(d) != 3 || !d[0].Open || d[1].Open || d[2].Open || len(d[1].Stretches) != 0 {
		return fmt.Errorf("dump %+v, %v", d, err)
	}
	if d, err = fetch(a, 2); err != nil || len(d) != 1 || d[0].Open {
		return fmt.Errorf("dump of another life %+v, %v", d, err)
	}
	d, err = copywire.Peek(context.Background(), a.call, copywire.PeekRequest{SlotLife: s.SlotLife}, 1<<20)
	if err != nil || len(d) != 1 || d[0].Partition != 0 || text(d[0].Stretches) != s.want(0) {
		return fmt.Errorf("peek %+v, %v", d, err)
	}
	d, err = copywire.Peek(context.Background(), a.call, copywire.PeekRequest{SlotLife: newStream(77, 1, 1).SlotLife}, 1<<20)
	if err != nil || len(d) != 0 {
		return fmt.Errorf("peek of nothing %+v, %v", d, err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if _, err := copywire.Fetch(ctx, a.call, 1, 1<<20); !errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("fetched twice: %v", err)
	}
	if !w.await(func() bool { return w.owner.Stats().DumpsKept == 0 }) {
		return fmt.Errorf("%d dumps kept", w.owner.Stats().DumpsKept)
	}
	return nil
}

// fenceComesLater: the call is there before the fence.
func fenceComesLater(w *world) error {
	a, s, err := opened(w)
	if err != nil {
		return err
	}
	got := make(chan error, 1)
	go func() {
		d, err := fetch(a, 5)
		if err == nil && text(d[0].Stretches) != s.want(0) {
			err = fmt.Errorf("dump %+v", d)
		}
		got <- err
	}()
	time.Sleep(200 * time.Millisecond)
	a.send(copywire.AppendFence(nil, 5, s.SlotLife, list(0)))
	return <-got
}

func dumpInChunks(w *world) error {
	a, s, err := opened(w)
	if err != nil {
		return err
	}
	for range 3 {
		a.send(copywire.AppendFrame(nil, s.frame(0, 20_000)))
	}
	a.send(copywire.AppendFence(nil, 1, s.SlotLife, list(0, 5)))
	a.send(copywire.AppendFence(nil, 2, s.SlotLife, list(0)))
	d, err := fetch(a, 1)
	if err != nil || len(d) != 2 || text(d[0].Stretches) != s.want(0) || text(d[1].Stretches) != s.want(5) {
		return fmt.Errorf("%d copies, %v", len(d), err)
	}
	if _, err := copywire.Fetch(context.Background(), a.call, 2, 1<<20); !errors.Is(err, copywire.ErrTooLarge) {
		return fmt.Errorf("fetched more than the limit: %v", err)
	}
	d, err = copywire.Peek(context.Background(), a.call, copywire.PeekRequest{SlotLife: s.SlotLife, Partitions: list(0)}, 1<<30)
	if err != nil || len(d) != 1 || text(d[0].Stretches) != s.want(0) {
		return fmt.Errorf("peek: %d copies, %v", len(d), err)
	}
	// What nobody goes on fetching is forgotten.
	if !w.owner.dumpsForgotten() {
		time.Sleep(time.Minute)
	}
	if n := w.owner.Stats().DumpsKept; n != 0 {
		return fmt.Errorf("%d dumps kept", n)
	}
	return nil
}

func (o *Owner) dumpsForgotten() bool { return o.dumps.len() == 0 }

func noRoomForDumps(w *world) error {
	a, s, err := opened(w)
	if err != nil {
		return err
	}
	for token := range uint64(70) {
		a.send(copywire.AppendFence(nil, token, s.SlotLife, list(0)))
	}
	if err := a.settled(); err != nil {
		return err
	}
	if d, err := fetch(a, 63); err != nil || len(d) != 1 {
		return fmt.Errorf("the last that there is room for: %v", err)
	}
	if _, err := fetch(a, 64); !errors.Is(err, ErrBusy) {
		return fmt.Errorf("one too many: %v", err)
	}
	// A new session of the peer has no use for what the old one asked for.
	w.start("a")
	if !w.await(w.owner.dumpsForgotten) {
		return fmt.Errorf("%d dumps kept", w.owner.Stats().DumpsKept)
	}
	return nil
}
