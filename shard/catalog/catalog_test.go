package catalog

import (
	"errors"
	"reflect"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func reg(instance string, rank uint32, edit ...func(*Registration)) Registration {
	r := Registration{
		Instance: instance, Rank: rank, Group: GroupKey{"llama", "default"}, BlockSize: 16,
		Endpoint: "tcp://127.0.0.1:5557",
	}
	for _, e := range edit {
		e(&r)
	}
	return r
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// The texts are part of the HTTP contract.
func TestConflicts(t *testing.T) {
	c := New()
	must(t, c.Register(1, reg("7", 0)))
	f := func(r Registration, want string) {
		t.Helper()
		before := c.View()
		err := c.Register(2, r)
		if !errors.Is(err, ErrConflict) || err.Error() != want {
			t.Errorf("got %v, want %s", err, want)
		}
		if c.View() != before {
			t.Error("a refused command changed the state")
		}
	}
	f(reg("7", 0), "instance 7 dp_rank 0 already registered")
	f(reg("7", 1, func(r *Registration) { r.Group.RoutingGroup = "b" }),
		"instance 7 is already registered for model=llama routing_group=default")
	f(reg("8", 0, func(r *Registration) { r.BlockSize = 32 }),
		"block_size mismatch for model=llama routing_group=default: existing=16, requested=32")

	must(t, c.Register(3, reg("9", 0, func(r *Registration) { r.Endpoint = "tcp://*:5557" })))
	f(reg("10", 0, func(r *Registration) { r.Endpoint = "tcp://*:5557" }),
		`endpoint tcp://*:5557 with topic "" already belongs to instance 9: give each pushing engine its own topic`)
}

func TestInvalidRegistration(t *testing.T) {
	for _, r := range []Registration{
		reg("", 0),
		reg("1", 0, func(r *Registration) { r.BlockSize = 0 }),
		reg("1", 0, func(r *Registration) { r.Endpoint = "" }),
		reg("1", 0, func(r *Registration) { r.Group.Model = "" }),
	} {
		if err := New().Register(1, r); !errors.Is(err, ErrInvalid) {
			t.Errorf("%+v: %v", r, err)
		}
	}
}

func TestUnregister(t *testing.T) {
	model, other, rank1, rank5 := "default", "other", uint32(1), uint32(5)
	setup := func() *Catalog {
		c := New()
		for i := range uint32(2) {
			must(t, c.Register(uint64(i+1), reg("7", i)))
		}
		return c
	}
	f := func(u Unregistration, retired int, want string) {
		t.Helper()
		c := setup()
		got, err := c.Unregister(9, u)
		if len(got) != retired || (err == nil) != (want == "") || err != nil && (err.Error() != want || !errors.Is(err, ErrNotFound)) {
			t.Errorf("%+v: retired %v, error %v", u, got, err)
		}
	}
	f(Unregistration{Instance: "7", Model: "llama", Group: &model, Rank: &rank1}, 1, "")
	f(Unregistration{Instance: "7", Model: "llama", Group: &model}, 2, "")
	f(Unregistration{Instance: "7", Model: "llama", Rank: &rank5}, 2, "") // no group: the rank is not looked at
	f(Unregistration{Instance: "8", Model: "llama"}, 0, "instance 8 not found")
	f(Unregistration{Instance: "7", Model: "qwen"}, 0, "instance 7 not found")
	f(Unregistration{Instance: "7", Model: "llama", Group: &model, Rank: &rank5}, 0, "instance 7 dp_rank 5 not found")
	f(Unregistration{Instance: "7", Model: "llama", Group: &other}, 0, "instance 7 is registered for model=llama routing_group=default")

	c := setup()
	if _, err := c.Unregister(3, Unregistration{Instance: "7", Model: "llama"}); err != nil {
		t.Fatal(err)
	}
	if _, ok := c.View().Group(GroupKey{"llama", "default"}); ok {
		t.Error("the group outlived its last worker")
	}
	must(t, c.Register(4, reg("7", 0, func(r *Registration) { r.BlockSize = 64 }))) // a new group may have another size
	if g, _ := c.View().Group(GroupKey{"llama", "default"}); g.ID == 1 {
		t.Error("the number of a dropped group was given again")
	}
}

// A restart retires the old slot; its number comes back only after Purged, and a
// late or repeated command changes nothing.
func TestLives(t *testing.T) {
	c := New()
	must(t, c.Register(1, reg("7", 0)))
	old, err := c.NewLife(2, "7", 0, 1)
	must(t, err)
	g, _ := c.View().Group(GroupKey{"llama", "default"})
	if old != (Retired{Group: g.ID, Slot: 0, Life: 1}) {
		t.Fatalf("retired %+v", old)
	}
	if _, live := g.Holder(0); live {
		t.Error("a retired slot still has a holder")
	}
	if h, live := g.Holder(1); !live || h.Life != 2 || h.Instance != "7" {
		t.Errorf("holder of the fresh slot: %+v, %v", h, live)
	}
	if again, err := c.NewLife(3, "7", 0, 1); err != nil || again != (Retired{}) {
		t.Errorf("a repeated restart retired %+v, %v", again, err)
	}
	must(t, c.Register(4, reg("8", 0)))
	if w, _ := c.View().Worker("8"); w.Ranks[0].Slot != 2 {
		t.Errorf("slot %d was given while 0 waits for its purge", w.Ranks[0].Slot)
	}
	c.Purged(5, Retired{Group: g.ID, Slot: 0, Life: 99}) // another life: ignored
	c.Purged(6, old)
	must(t, c.Register(7, reg("9", 0)))
	if w, _ := c.View().Worker("9"); w.Ranks[0].Slot != 0 {
		t.Errorf("slot %d, want the purged 0", w.Ranks[0].Slot)
	}
}

// The slots of a source that was taken over are not whole before Filled, and neither are
// lives that begin until then; what was read at an index before that is not whole later.
func TestFilling(t *testing.T) {
	c := New()
	must(t, c.Register(1, reg("7", 0)))
	must(t, c.Register(2, reg("8", 0)))
	must(t, c.Register(3, reg("7", 1)))
	must(t, c.Register(4, reg("7", 2, func(r *Registration) { r.Endpoint = "tcp://other:1" })))
	check := func(index uint64, want ...uint32) {
		t.Helper()
		g, _ := c.View().Group(GroupKey{"llama", "default"})
		var got []uint32
		for _, h := range g.Unwhole(index) {
			if h.Instance != "7" {
				t.Errorf("instance %s is not whole", h.Instance)
			}
			got = append(got, h.Rank)
		}
		if slices.Sort(got); !slices.Equal(got, want) {
			t.Errorf("not whole at %d: ranks %v, want %v", index, got, want)
		}
	}
	check(0)
	c.TakenOver(5, 1)
	check(5, 0, 1)
	check(1000, 0, 1)
	_, err := c.NewLife(6, "7", 0, 1)
	must(t, err)
	check(1000, 0, 1)
	must(t, c.Filled(7, "7", 0, 1)) // a life that has ended
	check(1000, 0, 1)
	must(t, c.Filled(8, "7", 1, 3))
	must(t, c.Filled(9, "7", 0, 6))
	must(t, c.Filled(10, "7", 0, 6)) // again: nothing
	check(7, 0, 1)
	check(8, 0)
	check(9)
	_, err = c.NewLife(11, "7", 0, 6)
	must(t, err)
	check(9)
	if err := c.Filled(12, "9", 0, 4); !errors.Is(err, ErrNotFound) {
		t.Errorf("filled %v", err)
	}
}

func TestDiscover(t *testing.T) {
	c := New()
	must(t, c.Register(1, reg("7", 0, func(r *Registration) { r.ReplayEndpoint = "tcp://127.0.0.1:5558" })))
	must(t, c.Discover(2, 1, 3))
	must(t, c.Discover(3, 1, 3)) // again: nothing
	s := c.View().Sources()
	if len(s) != 1 || len(s[0].Ranks) != 2 || !s[0].Ranks[1].Discovered || s[0].Ranks[1].Rank != 3 || s[0].ReplayEndpoint == "" {
		t.Fatalf("sources %+v", s)
	}
	life := s[0].Ranks[1].Life
	must(t, c.Register(4, reg("7", 3))) // registering it later keeps the life
	if r := c.View().Sources()[0].Ranks[1]; r.Discovered || r.Life != life {
		t.Errorf("rank %+v", r)
	}
	if err := c.Register(5, reg("7", 3)); !errors.Is(err, ErrConflict) {
		t.Errorf("second registration: %v", err)
	}
	if err := c.Discover(6, 99, 0); !errors.Is(err, ErrNotFound) {
		t.Errorf("unknown source: %v", err)
	}
}

// Whatever commands come: no two live ranks share a slot, a slot is not reused
// before it was purged, lives never repeat, and views are immutable.
func TestInvariants(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := New()
		waiting := map[Retired]bool{}
		var index uint64
		for range rapid.IntRange(1, 80).Draw(t, "commands") {
			index++
			inst := rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "instance")
			rank := rapid.Uint32Range(0, 2).Draw(t, "rank")
			switch rapid.IntRange(0, 6).Draw(t, "command") {
			case 0, 1:
				_ = c.Register(index, reg(inst, rank))
			case 2:
				if w, ok := c.View().Worker(inst); ok {
					if r, err := c.NewLife(index, inst, w.Ranks[0].Rank, w.Ranks[0].Life); err == nil {
						waiting[r] = true
					}
				}
			case 3:
				rs, _ := c.Unregister(index, Unregistration{Instance: inst, Model: "llama"})
				for _, r := range rs {
					waiting[r] = true
				}
			case 4:
				for r := range waiting {
					c.Purged(index, r)
					delete(waiting, r)
					break
				}
			case 5:
				for _, s := range c.View().Sources() {
					if s.Instance == inst {
						c.TakenOver(index, s.ID)
						break
					}
				}
			case 6:
				if w, ok := c.View().Worker(inst); ok {
					_ = c.Filled(index, inst, w.Ranks[0].Rank, w.Ranks[0].Life)
				}
			}
			if restored := FromImage(c.Image()); !reflect.DeepEqual(restored.Image(), c.Image()) || !reflect.DeepEqual(restored.View(), c.View()) {
				t.Fatal("a catalog restored from its image differs")
			} else if rapid.Bool().Draw(t, "restore") {
				c = restored
			}
			seen := map[[2]uint32]bool{}
			for r := range waiting {
				seen[[2]uint32{r.Group, r.Slot}] = true
			}
			for _, w := range c.View().Workers() {
				for _, r := range w.Ranks {
					k := [2]uint32{w.Group.ID, r.Slot}
					if seen[k] {
						t.Fatalf("slot %v is used twice or was reused before its purge", k)
					}
					seen[k] = true
					h, ok := w.Group.Holder(r.Slot)
					if !ok || h.Instance != w.Instance || h.Rank != r.Rank || h.Life != r.Life || r.Filling != (h.Whole == NotYet) {
						t.Fatalf("holder of %v is %+v, its rank %+v", k, h, r)
					}
					unwhole := map[uint32]Holder{}
					for slot, h := range w.Group.Unwhole(index - 1) {
						unwhole[slot] = h
					}
					if got, listed := unwhole[r.Slot]; listed != (h.Whole > index-1) || listed && got != h {
						t.Fatalf("slot %v, not whole at %d: %v, %+v", k, index-1, listed, h)
					}
				}
			}
		}
	})
}

func TestSlotsRunOut(t *testing.T) {
	c := New()
	must(t, c.Register(1, reg("7", 0)))
	g := c.groups[GroupKey{"llama", "default"}]
	for len(g.slots) < MaxSlots {
		g.slots = append(g.slots, slot{state: slotLive})
	}
	if err := c.Register(2, reg("8", 0)); !errors.Is(err, ErrExhausted) {
		t.Errorf("got %v", err)
	}
	if _, ok := c.View().Worker("8"); ok {
		t.Error("a refused worker is in the view")
	}
}

func TestCheckEndpoint(t *testing.T) {
	f := func(endpoint, reason string) {
		t.Helper()
		err := CheckEndpoint(endpoint)
		want := "invalid ZMQ endpoint `" + endpoint + "`: " + reason
		if reason == "" && err != nil || reason != "" && (err == nil || err.Error() != want || !errors.Is(err, ErrEndpoint)) {
			t.Errorf("%s: %v", endpoint, err)
		}
	}
	f("tcp://127.0.0.1:5557", "")
	f("tcp://*:5557", "")
	f("tcp://host:0", "")
	f("tcp://[::1]:5557", "")
	f("ipc:///tmp/x", "")
	f("inproc://anything", "")
	f("127.0.0.1:5557", "missing scheme")
	f("tcp://", "missing address")
	f("tcp://host", "missing TCP port")
	f("tcp://::1:5557", "missing TCP port")
	f("tcp://[::1]", "missing TCP port")
	f("tcp://:5557", "missing TCP host")
	f("tcp://[::1:5557", "missing closing `]`")
	f("tcp://host:99999", `invalid TCP port: "99999" is not a number from 0 to 65535`)
	f("tcp://host:", `invalid TCP port: "" is not a number from 0 to 65535`)
	f("udp://host:1", "unsupported scheme `udp`")
}
