package envelope

import (
	"slices"
	"testing"
)

func TestBounds(t *testing.T) {
	for _, c := range []struct {
		moments     []Moment
		least, most [2]int
	}{
		{[]Moment{{0b0111, 0}}, [2]int{3, 3}, [2]int{3, 3}},
		{[]Moment{{0b1011, 0b0100}}, [2]int{2, 3}, [2]int{2, 3}}, // a hole that the host tier fills ends the walk in device
		{[]Moment{{0b0001, 0}, {0b0111, 0}}, [2]int{1, 1}, [2]int{3, 3}},
		{[]Moment{{0b0101, 0}, {0b0110, 0}}, [2]int{0, 0}, [2]int{3, 3}}, // claim by claim, at no single moment
		{[]Moment{{0, 0b0011}, {0b0001, 0b0010}}, [2]int{0, 0}, [2]int{1, 2}},
		{[]Moment{{0, 0}}, [2]int{0, 0}, [2]int{0, 0}},
	} {
		least, most := Bounds(slices.Values(c.moments))
		if least != c.least || most != c.most {
			t.Errorf("%b: %v to %v, want %v to %v", c.moments, least, most, c.least, c.most)
		}
	}
}
