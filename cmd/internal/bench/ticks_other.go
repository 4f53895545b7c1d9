//go:build !amd64

package bench

import "time"

var start = time.Now()

// ticks counts nanoseconds where there is no cheaper clock.
func ticks() uint64 { return uint64(time.Since(start)) }
