package sim

import "slices"

// Shrink drops steps of a schedule as long as fails still says so, which it may say of a
// schedule only now and then. It calls fails at most budget times.
func Shrink(steps []Step, budget int, fails func([]Step) bool) []Step {
	for size := len(steps) / 2; size > 0; {
		dropped := false
		for at := 0; at < len(steps) && budget > 0; {
			budget--
			less := slices.Delete(slices.Clone(steps), at, min(at+size, len(steps)))
			if fails(less) {
				steps, dropped = less, true
			} else {
				at += size
			}
		}
		if budget == 0 {
			break
		}
		if !dropped || size > 1 {
			size /= 2
		}
	}
	return steps
}
