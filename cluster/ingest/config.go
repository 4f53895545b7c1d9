package ingest

import (
	"errors"
	"fmt"
	"time"

	"github.com/kvcluster/kvcluster/shard"
	"github.com/kvcluster/kvcluster/shard/catalog"
)

// LossPolicy says what becomes of a slot that has provably kept its engine but has
// lost batches for good (rule T6).
type LossPolicy uint8

const (
	// ClearOnLoss restarts the slot empty, as a new life.
	ClearOnLoss LossPolicy = iota
	// KeepOnLoss keeps the claims and flags the slot as degraded: its score can be
	// too high for blocks whose removal was lost.
	KeepOnLoss
)

// String is the flag and metric value.
func (p LossPolicy) String() string {
	if p == KeepOnLoss {
		return "keep"
	}
	return "clear"
}

// Config of a Manager. The zero value of every field except Layout means its default.
type Config struct {
	Loops  int          // threads that read sockets; default 1
	Layout shard.Layout // how chains map to partitions
	OnLoss LossPolicy

	HighWater  int   // receive mark of a subscription, in messages; 0 = the transport's
	MaxMessage int64 // largest frame of a message, in bytes; 0 = the transport's

	// BufferBatches and BufferBytes bound what one stream (or one slot that waits for
	// its number) holds back. What does not fit is dropped and counted, and fetched
	// by replay. LoopBufferBytes bounds all of one loop.
	BufferBatches   int   // default 16,384
	BufferBytes     int64 // default 32 MiB
	LoopBufferBytes int64 // default 256 MiB

	ReplayTimeout  time.Duration // a replay without a reply for so long is over; default 3 s
	ReplayAttempts int           // attempts without progress before giving up; default 3

	// ProbeAfter is the silence after which a source with a replay endpoint is asked
	// whether it has lost something (rule T5); it doubles up to ProbeMax while nothing
	// changes. Negative = never. Defaults 5 s and 60 s.
	ProbeAfter, ProbeMax time.Duration

	MaxRanks int // ranks of one source, discovered ones included; default 1,024

	// RestartBackoff delays a slot's second new life in a row, doubling up to
	// RestartBackoffMax; a quiet RestartBackoffMax resets it. Defaults 1 s, 60 s.
	RestartBackoff, RestartBackoffMax time.Duration
	// RetryMin and RetryMax bound the back-off of failed log commands and sockets;
	// defaults 500 ms and 30 s. A command without an answer is repeated after LogTimeout
	// (default 10 s).
	RetryMin, RetryMax, LogTimeout time.Duration

	// AdoptTimeout is how long Takeover may take; default 30 s. CursorEvery is how often
	// owners are told how far a slot has come; default 1 s.
	AdoptTimeout, CursorEvery time.Duration

	// FillPatience is how long answers without a source that was taken over are called
	// incomplete at most, if its engine does not say what it holds; default 10 s.
	FillPatience time.Duration

	Tick time.Duration // resolution of all time-outs; default 100 ms

	// Limits of each translator; 0 = its defaults.
	MaxOrphanBlocks, MaxTainted, MaxBlocks int

	// Tenure returns the log position that gave a source to this node, 0 = the log no
	// longer says so; default: the source's ID. It is asked once for each source and view.
	Tenure func(catalog.Source) uint64
}

func orDefault[T int | int64 | time.Duration](v *T, def T) {
	if *v == 0 {
		*v = def
	}
}

func (c *Config) applyDefaults() {
	orDefault(&c.Loops, 1)
	orDefault(&c.BufferBatches, 16_384)
	orDefault(&c.BufferBytes, 32<<20)
	orDefault(&c.LoopBufferBytes, 256<<20)
	orDefault(&c.ReplayTimeout, 3*time.Second)
	orDefault(&c.ReplayAttempts, 3)
	orDefault(&c.ProbeAfter, 5*time.Second)
	orDefault(&c.ProbeMax, 60*time.Second)
	orDefault(&c.MaxRanks, 1024)
	orDefault(&c.RestartBackoff, time.Second)
	orDefault(&c.RestartBackoffMax, 60*time.Second)
	orDefault(&c.RetryMin, 500*time.Millisecond)
	orDefault(&c.RetryMax, 30*time.Second)
	orDefault(&c.LogTimeout, 10*time.Second)
	orDefault(&c.AdoptTimeout, 30*time.Second)
	orDefault(&c.CursorEvery, time.Second)
	orDefault(&c.FillPatience, 10*time.Second)
	orDefault(&c.Tick, 100*time.Millisecond)
	if c.Tenure == nil {
		c.Tenure = func(s catalog.Source) uint64 { return s.ID }
	}
}

// Validate reports every value that makes no sense, after defaults were applied.
func (c Config) Validate() error {
	c.applyDefaults()
	var errs []error
	positive := func(name string, v int64) {
		if v <= 0 {
			errs = append(errs, fmt.Errorf("ingest config: %s is %d, must be above 0", name, v))
		}
	}
	positive("Loops", int64(c.Loops))
	positive("Layout.Partitions", int64(c.Layout.Partitions))
	positive("BufferBatches", int64(c.BufferBatches))
	positive("BufferBytes", c.BufferBytes)
	positive("LoopBufferBytes", c.LoopBufferBytes)
	positive("ReplayTimeout", int64(c.ReplayTimeout))
	positive("ReplayAttempts", int64(c.ReplayAttempts))
	positive("MaxRanks", int64(c.MaxRanks))
	positive("RestartBackoff", int64(c.RestartBackoff))
	positive("RetryMin", int64(c.RetryMin))
	positive("LogTimeout", int64(c.LogTimeout))
	positive("AdoptTimeout", int64(c.AdoptTimeout))
	positive("CursorEvery", int64(c.CursorEvery))
	positive("FillPatience", int64(c.FillPatience))
	positive("Tick", int64(c.Tick))
	atLeast := func(name string, v time.Duration, of string, min time.Duration) {
		if v < min {
			errs = append(errs, fmt.Errorf("ingest config: %s is %v, must be at least %s (%v)", name, v, of, min))
		}
	}
	atLeast("RestartBackoffMax", c.RestartBackoffMax, "RestartBackoff", c.RestartBackoff)
	atLeast("RetryMax", c.RetryMax, "RetryMin", c.RetryMin)
	if c.ProbeAfter > 0 {
		atLeast("ProbeMax", c.ProbeMax, "ProbeAfter", c.ProbeAfter)
	}
	if c.OnLoss > KeepOnLoss {
		errs = append(errs, fmt.Errorf("ingest config: OnLoss is %d", c.OnLoss))
	}
	return errors.Join(errs...)
}
