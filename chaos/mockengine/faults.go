package mockengine

import (
	"fmt"
	"strconv"
	"strings"
)

// FaultKind is something that goes wrong at a publisher.
type FaultKind string

// The kinds of fault.
const (
	// Restart: the process dies and comes back on the same addresses: the sockets
	// are closed and opened, the cache and the replay buffer are empty, the sequence
	// begins as the engine's does. vLLM says nothing; SGLang and TensorRT-LLM send
	// a clear first.
	Restart FaultKind = "restart"
	// RestartInPlace is a restart that subscribers cannot see at the socket.
	RestartInPlace FaultKind = "restart-in-place"
	// Lose: the next Count batches are kept for replay but not sent.
	Lose FaultKind = "lose"
	// Drop: the next Count batches use up their sequence numbers and are gone.
	Drop FaultKind = "drop"
	// ResetSequence: the sequence begins again and the replay buffer is empty, but
	// the cache stays as it is.
	ResetSequence FaultKind = "reset-sequence"
	// Garbage: Count messages that are no batches: too few frames, short sequence
	// frames, payloads that are no msgpack or end early.
	Garbage FaultKind = "garbage"
	// Clear: the prefix cache is reset; running requests begin again.
	Clear FaultKind = "clear"
	// Stop: the publisher closes its sockets and stays dead.
	Stop FaultKind = "stop"
)

// Fault is one fault at one or all publishers.
type Fault struct {
	Kind  FaultKind
	Count int // batches or messages; 0 = 1
	// Batch applies the fault when the publisher has made that many batches.
	Batch uint64
	// Worker is the publisher, -1 = all.
	Worker int
}

// ParseFault reads kind[:count]@batch[/publisher], for example "lose:5@200/3":
// publisher 3 loses five batches after its 200th.
func ParseFault(s string) (Fault, error) {
	f := Fault{Count: 1, Worker: -1}
	bad := func(what string) (Fault, error) {
		return Fault{}, fmt.Errorf("%w: fault %q: %s; want kind[:count]@batch[/publisher]", ErrConfig, s, what)
	}
	head, tail, ok := strings.Cut(s, "@")
	if !ok {
		return bad("no @batch")
	}
	kind, count, counted := strings.Cut(head, ":")
	f.Kind = FaultKind(kind)
	var err error
	if counted {
		if f.Count, err = strconv.Atoi(count); err != nil {
			return bad("the count is no number")
		}
	}
	batch, worker, one := strings.Cut(tail, "/")
	if f.Batch, err = strconv.ParseUint(batch, 10, 64); err != nil {
		return bad("the batch is no number")
	}
	if one {
		if f.Worker, err = strconv.Atoi(worker); err != nil || f.Worker < 0 {
			return bad("the publisher is no number")
		}
	}
	if err := f.validate(1 << 30); err != nil {
		return Fault{}, err
	}
	return f, nil
}

// String is the form that ParseFault reads.
func (f Fault) String() string {
	s := fmt.Sprintf("%s:%d@%d", f.Kind, max(f.Count, 1), f.Batch)
	if f.Worker >= 0 {
		s += "/" + strconv.Itoa(f.Worker)
	}
	return s
}

func (f Fault) validate(publishers int) error {
	switch f.Kind {
	case Restart, RestartInPlace, Lose, Drop, ResetSequence, Garbage, Clear, Stop:
	default:
		return fmt.Errorf("%w: fault kind %q, want one of %s, %s, %s, %s, %s, %s, %s, %s", ErrConfig, f.Kind,
			Restart, RestartInPlace, Lose, Drop, ResetSequence, Garbage, Clear, Stop)
	}
	if f.Count < 0 || f.Count > 1<<20 {
		return fmt.Errorf("%w: fault %s: count %d, want 1 to %d", ErrConfig, f.Kind, f.Count, 1<<20)
	}
	if f.Worker < -1 || f.Worker >= publishers {
		return fmt.Errorf("%w: fault %s: publisher %d, want 0 to %d, or -1 for all", ErrConfig, f.Kind, f.Worker, publishers-1)
	}
	return nil
}
