package shard

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func nodes(n int) []Member {
	ms := make([]Member, n)
	for i := range ms {
		ms[i] = Member{Name: fmt.Sprintf("127.0.0.1:%d", i+1)} // digits at the end: the ring's old trap
	}
	return ms
}

func place(t interface{ Fatal(...any) }, cfg PlaceConfig, ms []Member, prev *Placement) Placement {
	p, err := Place(cfg, ms, prev)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// Whatever the members: every partition has its owners, all different, in different
// zones where there are enough; loads are within the tolerance plus one partition;
// the order of the members does not matter.
func TestPlaceProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 20).Draw(t, "members")
		ms := nodes(n)
		zones := rapid.IntRange(0, 4).Draw(t, "zones")
		for i := range ms {
			if zones > 0 {
				ms[i].Zone = fmt.Sprint("z", i%zones)
			}
			ms[i].Weight = float64(rapid.IntRange(1, 4).Draw(t, "weight"))
		}
		cfg := PlaceConfig{Partitions: uint32(rapid.SampledFrom([]int{64, 100, 256, 512}).Draw(t, "partitions")), Replicas: rapid.IntRange(1, 3).Draw(t, "replicas")}
		p := place(t, cfg, ms, nil)
		shuffled := slices.Clone(ms)
		slices.Reverse(shuffled)
		if again := place(t, cfg, shuffled, nil); !reflect.DeepEqual(p, again) {
			t.Fatal("the order of members changed the placement")
		}
		want := min(cfg.Replicas, n)
		zoneOf := map[string]string{}
		for _, m := range ms {
			zoneOf[m.Name] = m.Zone
		}
		for part, owners := range p.Owners {
			if len(owners) != want || len(slices.Compact(slices.Clone(owners))) != want {
				t.Fatalf("partition %d has owners %v, want %d different ones", part, owners, want)
			}
			seen := map[string]bool{}
			for _, o := range owners {
				seen[zoneOf[o]] = true
			}
			if zones > 0 && len(seen) < min(want, zones, n) {
				t.Fatalf("partition %d: owners %v lie in %d zones of %d", part, owners, len(seen), zones)
			}
		}
		if zones == 0 {
			checkBalance(t, cfg, ms, p, 0.10)
		}
	})
}

func checkBalance(t interface{ Fatalf(string, ...any) }, cfg PlaceConfig, ms []Member, p Placement, tolerance float64) {
	load := map[string]float64{}
	var total, weights, heaviest float64
	for part, owners := range p.Owners {
		w := 1.0
		if cfg.Weights != nil {
			w = cfg.Weights[part]
		}
		heaviest = max(heaviest, w)
		for _, o := range owners {
			load[o] += w
			total += w
		}
	}
	// A member cannot own a partition twice: who is heavier than that carries all
	// partitions once, and the others share the rest.
	most := total / float64(len(p.Owners[0]))
	rest, capped := total, map[string]bool{}
	for again := true; again; {
		again, weights = false, 0
		for _, m := range ms {
			if !capped[m.Name] {
				weights += m.weight()
			}
		}
		for _, m := range ms {
			if !capped[m.Name] && rest*m.weight()/weights > most {
				capped[m.Name], rest, again = true, rest-most, true
				break
			}
		}
	}
	for _, m := range ms {
		share := rest * m.weight() / weights
		if !capped[m.Name] && load[m.Name] > share*(1+tolerance)+heaviest+1e-9 {
			t.Fatalf("%s carries %.1f, its share is %.1f", m.Name, load[m.Name], share)
		}
	}
}

// A join moves copies only to the new member, a leave only those of the one that left.
func TestMinimalMovement(t *testing.T) {
	for _, n := range []int{1, 2, 3, 7, 15} {
		for _, r := range []int{1, 2, 3} {
			cfg := PlaceConfig{Partitions: 256, Replicas: r}
			before := place(t, cfg, nodes(n), nil)
			after := place(t, cfg, nodes(n+1), &before)
			joined := nodes(n + 1)[n].Name
			ideal := float64(256*min(r, n+1)) / float64(n+1)
			if moved := Moves(before, after); float64(moved) > ideal*1.3+2 {
				t.Errorf("%d -> %d members, R=%d: %d copies moved, ideal %.0f", n, n+1, r, moved, ideal)
			}
			for part, owners := range after.Owners {
				for _, o := range owners {
					if o != joined && !slices.Contains(before.Owners[part], o) {
						t.Errorf("%d members, R=%d: partition %d moved between survivors", n, r, part)
					}
				}
			}
			back := place(t, cfg, nodes(n), &after)
			for part, owners := range back.Owners {
				if slices.Contains(owners, joined) {
					t.Errorf("partition %d is still at %s", part, joined)
				}
				for _, o := range after.Owners[part] {
					if o != joined && !slices.Contains(owners, o) {
						t.Errorf("partition %d lost its owner %s when another member left", part, o)
					}
				}
			}
		}
	}
}

// Measured weight moves copies until the heaviest member is near its share.
func TestMeasuredWeight(t *testing.T) {
	cfg := PlaceConfig{Partitions: 256, Replicas: 2, Weights: make([]float64, 256)}
	for i := range cfg.Weights {
		cfg.Weights[i] = 1
		if i%16 == 0 {
			cfg.Weights[i] = 12
		}
	}
	flat := place(t, PlaceConfig{Partitions: 256, Replicas: 2}, nodes(8), nil)
	p := place(t, cfg, nodes(8), &flat)
	checkBalance(t, cfg, nodes(8), p, 0.10)
}

func TestPlaceRefuses(t *testing.T) {
	f := func(cfg PlaceConfig, ms []Member) {
		t.Helper()
		if _, err := Place(cfg, ms, nil); !errors.Is(err, ErrPlacement) {
			t.Errorf("got %v", err)
		}
	}
	f(PlaceConfig{Partitions: 0, Replicas: 1}, nodes(1))
	f(PlaceConfig{Partitions: 8, Replicas: 0}, nodes(1))
	f(PlaceConfig{Partitions: 8, Replicas: 1}, nil)
	f(PlaceConfig{Partitions: 8, Replicas: 1, Weights: []float64{1}}, nodes(1))
	f(PlaceConfig{Partitions: 8, Replicas: 1}, []Member{{Name: "a"}, {Name: "a"}})
}

// More members than partitions: some own nothing, nobody owns twice.
func TestMoreMembersThanPartitions(t *testing.T) {
	p := place(t, PlaceConfig{Partitions: 4, Replicas: 2}, nodes(9), nil)
	checkBalance(t, PlaceConfig{Partitions: 4, Replicas: 2}, nodes(9), p, 0.10)
	for part, owners := range p.Owners {
		if len(owners) != 2 || owners[0] == owners[1] {
			t.Errorf("partition %d: %v", part, owners)
		}
	}
}
