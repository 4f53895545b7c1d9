package state

import (
	"errors"
	"fmt"

	"github.com/vmihailenco/msgpack/v5"

	"github.com/kvcluster/kvcluster/shard/catalog"
)

// Command is one log entry. Exactly one of its parts is set (Boots belongs to Remove).
type Command struct {
	// ID makes the command idempotent: 16 random bytes chosen by its author.
	ID [16]byte

	Found      *Founding     `msgpack:",omitempty"`
	Introduce  *Member       `msgpack:",omitempty"`
	Leave      *string       `msgpack:",omitempty"`
	Remove     *string       `msgpack:",omitempty"`
	Boots      []uint64      `msgpack:",omitempty"` // Remove: the processes that are meant; none = whichever
	Register   *Registration `msgpack:",omitempty"`
	Unregister *Unregister   `msgpack:",omitempty"`
	Discover   *Discover     `msgpack:",omitempty"`
	Bigram     *uint32       `msgpack:",omitempty"` // a group whose engines send EAGLE pages
	NewLife    *NewLife      `msgpack:",omitempty"`
	Filled     *Filled       `msgpack:",omitempty"`
	Purged     *Purged       `msgpack:",omitempty"`
	Assign     *Assign       `msgpack:",omitempty"`
	Begin      *Begin        `msgpack:",omitempty"`
	Report     *Report       `msgpack:",omitempty"`
	Abort      *uint64       `msgpack:",omitempty"`
	Excuse     *Excuse       `msgpack:",omitempty"`
}

// Excuse ends the waiting of a change for a node that is dead and still has sources,
// because their engines connect to it.
type Excuse struct {
	Job  uint64
	Node string
}

// Registration adds a rank of a worker; Node, if set, is where the source goes first.
// Without it the leader chooses. A source whose endpoint binds at its reader
// (catalog.Binds) must be given the node that its engines connect to; it stays there,
// also when that node is dead, until the node is removed.
type Registration struct {
	catalog.Registration
	Node string
}

// Unregister removes a worker or a rank.
type Unregister struct{ catalog.Unregistration }

// Discover adds a rank seen in a source.
type Discover struct {
	Source uint64
	Rank   uint32
}

// NewLife restarts a rank in a fresh slot.
type NewLife struct {
	Instance string
	Rank     uint32
	Life     uint64 // the life that ends
}

// Filled says that a slot whose source was taken over has all now that its engine can be
// asked for.
type Filled struct {
	Instance string
	Rank     uint32
	Life     uint64
}

// Purged says that a member holds nothing of a retired slot any more, and takes nothing of
// it: its process Boot. 0 = whichever.
type Purged struct {
	Member string
	Boot   uint64 `msgpack:",omitempty"`
	Slot   catalog.Retired
}

// Assign gives a source to an ingest node.
type Assign struct {
	Source uint64
	Node   string
	// Over is the tenure that is to end, when the node that reads the source is to begin
	// it again. 0 = giving a source to the node that has it changes nothing.
	Over uint64
	// Lost, if set, is the life for whose sake it is to begin again: when another one has
	// begun already, nothing changes.
	Lost catalog.Retired
}

// Begin starts a layout change.
type Begin struct{ Moves []Move }

// Report says that an ingest node has filled the targets of a change.
type Report struct {
	Job     uint64
	Node    string
	Version uint64
	Boots   map[string]uint64
}

// Result is the outcome of a command, equal on every node.
type Result struct {
	Index   uint64
	Code    Code
	Text    string            // what an operator reads, when Code is not OK
	Retired []catalog.Retired // slots that this command ended
	Job     uint64            // begin: its id
}

// Code is the kind of outcome.
type Code uint8

// The codes; each stands for a sentinel error.
const (
	OK Code = iota
	Refused
	Unknown
	Conflict
	NotFound
	Invalid
	Exhausted
)

var sentinels = [...]error{
	OK: nil, Refused: ErrRefused, Unknown: ErrUnknown, Conflict: catalog.ErrConflict,
	NotFound: catalog.ErrNotFound, Invalid: catalog.ErrInvalid, Exhausted: catalog.ErrExhausted,
}

// Err returns the outcome as an error that wraps its sentinel, or nil.
func (r Result) Err() error {
	if r.Code == OK {
		return nil
	}
	return &resultError{r}
}

type resultError struct{ r Result }

func (e *resultError) Error() string { return e.r.Text }
func (e *resultError) Unwrap() error { return sentinels[e.r.Code] }

func codeOf(err error) Code {
	for c := OK + 1; int(c) < len(sentinels); c++ {
		if errors.Is(err, sentinels[c]) {
			return c
		}
	}
	return Refused
}

// Encode returns the log form of a command.
func (c Command) Encode() ([]byte, error) {
	b, err := msgpack.Marshal(&c)
	if err != nil {
		return nil, fmt.Errorf("encode command: %w", err)
	}
	return b, nil
}

// DecodeCommand reads the log form.
func DecodeCommand(b []byte) (Command, error) {
	var c Command
	if err := msgpack.Unmarshal(b, &c); err != nil {
		return Command{}, fmt.Errorf("decode command: %w", err)
	}
	return c, nil
}

// Apply applies the entry at a log index and returns its outcome. A refused command
// changes nothing but the index.
func (s *State) Apply(index uint64, c Command) Result {
	if r, again := s.done.find(c.ID); again {
		s.index, s.view = index, nil
		return r
	}
	s.index, s.view = index, nil
	r := Result{Index: index}
	if err := s.apply(c, &r); err != nil {
		r = Result{Index: index, Code: codeOf(err), Text: err.Error()}
	}
	s.done.add(c.ID, r)
	return r
}

func (s *State) apply(c Command, r *Result) error {
	if c.Found != nil {
		return s.found(*c.Found)
	}
	if err := s.founded(); err != nil {
		return err
	}
	switch {
	case c.Introduce != nil:
		return s.introduce(*c.Introduce)
	case c.Leave != nil:
		return s.leave(*c.Leave)
	case c.Remove != nil:
		return s.remove(*c.Remove, c.Boots)
	case c.Register != nil:
		return s.register(*c.Register)
	case c.Unregister != nil:
		retired, err := s.catalog.Unregister(s.index, c.Unregister.Unregistration)
		if err != nil {
			return err
		}
		r.Retired = retired
		s.retire(retired...)
		s.dropStaleAssignments()
		return nil
	case c.Bigram != nil:
		return s.catalog.Bigram(s.index, *c.Bigram)
	case c.Discover != nil:
		return s.catalog.Discover(s.index, c.Discover.Source, c.Discover.Rank)
	case c.NewLife != nil:
		old, err := s.catalog.NewLife(s.index, c.NewLife.Instance, c.NewLife.Rank, c.NewLife.Life)
		if err != nil {
			return err
		}
		if old != (catalog.Retired{}) {
			r.Retired = []catalog.Retired{old}
			s.retire(old)
		}
		return nil
	case c.Filled != nil:
		return s.catalog.Filled(s.index, c.Filled.Instance, c.Filled.Rank, c.Filled.Life)
	case c.Purged != nil:
		s.purged(*c.Purged)
		return nil
	case c.Assign != nil:
		return s.assignSource(*c.Assign)
	case c.Begin != nil:
		j, err := s.begin(c.Begin.Moves)
		if err != nil {
			return err
		}
		r.Job = j.ID
		return nil
	case c.Report != nil:
		return s.report(c.Report.Job, c.Report.Node, c.Report.Version, c.Report.Boots)
	case c.Abort != nil:
		return s.abort(*c.Abort)
	case c.Excuse != nil:
		return s.excuse(c.Excuse.Job, c.Excuse.Node)
	}
	return fmt.Errorf("%w: an empty command (from a newer version?)", ErrRefused)
}

func (s *State) register(c Registration) error {
	if err := s.catalog.Register(s.index, c.Registration); err != nil {
		return err
	}
	for _, src := range s.catalog.View().Sources() {
		if src.Instance != c.Instance || src.Endpoint != c.Endpoint || src.Topic != c.Topic {
			continue
		}
		if a, ok := s.assign[src.ID]; ok {
			s.version[a.Node] = s.index
			s.reopenReports(a.Node)
		} else if s.members[c.Node] != nil {
			return s.assignSource(Assign{Source: src.ID, Node: c.Node})
		}
	}
	return nil
}

// keepResults bounds the memory of outcomes: a command that comes again after so many
// others is taken for a new one. Authors give up on a command long before.
const keepResults = 4096

type results struct {
	Order []([16]byte)
	ByID  map[[16]byte]Result
}

func (d *results) find(id [16]byte) (Result, bool) {
	if id == ([16]byte{}) {
		return Result{}, false
	}
	r, ok := d.ByID[id]
	return r, ok
}

func (d *results) add(id [16]byte, r Result) {
	if id == ([16]byte{}) {
		return
	}
	if d.ByID == nil {
		d.ByID = map[[16]byte]Result{}
	}
	d.ByID[id] = r
	d.Order = append(d.Order, id)
	if len(d.Order) > keepResults {
		delete(d.ByID, d.Order[0])
		d.Order = d.Order[1:]
	}
}
