package bench

import (
	"fmt"
	"math"
	"slices"
	"strconv"
)

// Hex is a 64-bit number that JSON shows as "0x" and 16 digits.
type Hex uint64

// MarshalText implements encoding.TextMarshaler.
func (h Hex) MarshalText() ([]byte, error) { return fmt.Appendf(nil, "0x%016x", uint64(h)), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (h *Hex) UnmarshalText(b []byte) error {
	v, err := strconv.ParseUint(string(b), 0, 64)
	*h = Hex(v)
	return err
}

// Spread is a figure of several repetitions.
type Spread struct {
	Median float64   `json:"median"`
	Min    float64   `json:"min"`
	Max    float64   `json:"max"`
	Runs   []float64 `json:"runs"` // in order of measurement
}

// NewSpread summarises the repetitions of one figure. The median of an even number is
// the mean of the two in the middle.
func NewSpread(runs []float64) Spread {
	if len(runs) == 0 {
		return Spread{Median: math.NaN(), Min: math.NaN(), Max: math.NaN()}
	}
	s := slices.Sorted(slices.Values(runs))
	n := len(s)
	return Spread{Median: (s[(n-1)/2] + s[n/2]) / 2, Min: s[0], Max: s[n-1], Runs: runs}
}

// spreadOf is NewSpread of one figure of all runs.
func spreadOf[T any](runs []T, figure func(*T) float64) Spread {
	out := make([]float64, len(runs))
	for i := range runs {
		out[i] = figure(&runs[i])
	}
	return NewSpread(out)
}
