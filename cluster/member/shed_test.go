package member

import (
	"slices"
	"testing"
	"time"
)

// Two owners of a partition that are full at the same time make it lose a share once.
func TestRoomIsMadeOnce(t *testing.T) {
	var s shedding
	first := time.Unix(1000, 0)
	for _, c := range []struct {
		what string
		set  [2]byte
		at   time.Time
		want []int
	}{
		{"an owner", [2]byte{0b11, 1}, first, []int{0, 1, 8}},
		{"the other owner", [2]byte{0b11, 1}, first.Add(shedRest / 2), nil},
		{"the owner of another one too", [2]byte{0b111, 0}, first.Add(shedRest / 2), []int{2}},
		{"the first a period later", [2]byte{0b11, 0}, first.Add(ShedPeriod), []int{0, 1}},
	} {
		var got []int
		for p, in := range s.take(c.set[:], 9, c.at) {
			if in {
				got = append(got, p)
			}
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", c.what, got, c.want)
		}
	}
}
