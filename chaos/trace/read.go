package trace

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"strconv"
	"time"
)

// ErrFormat is wrapped by every error about a row that cannot be used.
var ErrFormat = errors.New("malformed trace")

// maxLine bounds one row in bytes: a prompt of 1.5 million ids.
const maxLine = 16 << 20

// row is one line of the file. Pointers tell absent from zero.
type row struct {
	Timestamp *float64        `json:"timestamp"`
	Delay     *float64        `json:"delay"`
	Input     *float64        `json:"input_length"`
	Output    float64         `json:"output_length"`
	IDs       []uint64        `json:"hash_ids"`
	Session   json.RawMessage `json:"session_id"`
}

// ReadFile reads a JSONL trace from a file; see Read.
func ReadFile(path string) (*Trace, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read trace: %w", err)
	}
	defer f.Close()
	t, err := Read(f)
	if err != nil {
		return nil, fmt.Errorf("read trace %s: %w", path, err)
	}
	return t, nil
}

// Read reads a JSONL trace with DefaultTokensPerID tokens for each id. A row that
// cannot be used ends it with an error that wraps ErrFormat or ErrRange and names
// the line: a trace that silently lacks rows would give wrong figures.
func Read(r io.Reader) (*Trace, error) {
	s := bufio.NewScanner(r)
	s.Buffer(make([]byte, 64<<10), maxLine)
	b := reader{
		trace:    &Trace{TokensPerID: DefaultTokensPerID},
		sessions: make(map[string]uint32),
		last:     make(map[uint32]time.Duration),
	}
	line := 0
	for s.Scan() {
		line++
		text := bytes.TrimSpace(s.Bytes())
		if len(text) == 0 {
			continue
		}
		var w row
		if err := json.Unmarshal(text, &w); err != nil {
			return nil, fmt.Errorf("line %d: %w: %w", line, ErrFormat, err)
		}
		if err := b.add(&w); err != nil {
			return nil, fmt.Errorf("line %d: %w", line, err)
		}
	}
	if err := s.Err(); err != nil {
		return nil, fmt.Errorf("line %d: %w", line+1, err)
	}
	if len(b.trace.Requests) == 0 {
		return nil, fmt.Errorf("%w: no rows", ErrFormat)
	}
	return b.trace, nil
}

// reader turns rows into requests.
type reader struct {
	trace    *Trace
	sessions map[string]uint32        // text of session_id -> number
	turns    []uint32                 // rows so far, per session
	last     map[uint32]time.Duration // time of a named session's latest row
	previous time.Duration            // time of the latest row
}

func (b *reader) add(w *row) error {
	if w.Input == nil {
		return fmt.Errorf("%w: input_length is missing", ErrFormat)
	}
	r := Request{}
	var err error
	if r.Input, err = tokens("input_length", *w.Input); err != nil {
		return err
	}
	if r.Output, err = tokens("output_length", w.Output); err != nil {
		return err
	}
	r.IDs = make([]uint32, len(w.IDs))
	for i, id := range w.IDs {
		if id > math.MaxUint32 {
			return fmt.Errorf("hash_ids[%d] = %d: %w: ids have 32 bits", i, id, ErrRange)
		}
		r.IDs[i] = uint32(id)
	}
	named, known, err := b.session(w, &r)
	if err != nil {
		return err
	}
	if r.Time, err = b.time(w, r.Session, named && known); err != nil {
		return err
	}
	r.Turn = b.turns[r.Session]
	b.turns[r.Session]++
	b.previous = r.Time
	if named {
		b.last[r.Session] = r.Time
	}
	b.trace.Requests = append(b.trace.Requests, r)
	return nil
}

// session sets the session of r; named says that the row has an id, known that an
// earlier row had the same one.
func (b *reader) session(w *row, r *Request) (named, known bool, err error) {
	if len(w.Session) == 0 || string(w.Session) == "null" {
		r.Session = uint32(len(b.turns))
		b.turns = append(b.turns, 0)
		return false, false, nil
	}
	key := string(w.Session)
	if key[0] == '"' {
		if err := json.Unmarshal(w.Session, &key); err != nil {
			return false, false, fmt.Errorf("session_id: %w: %w", ErrFormat, err)
		}
	} else if _, err := strconv.ParseFloat(key, 64); err != nil {
		return false, false, fmt.Errorf("session_id %s: %w: neither a number nor a text", key, ErrFormat)
	}
	n, ok := b.sessions[key]
	if !ok {
		n = uint32(len(b.turns))
		b.sessions[key] = n
		b.turns = append(b.turns, 0)
	}
	r.Session = n
	return true, ok, nil
}

func (b *reader) time(w *row, session uint32, continues bool) (time.Duration, error) {
	base, ms := time.Duration(0), 0.0
	switch {
	case w.Timestamp != nil:
		ms = *w.Timestamp
	case w.Delay != nil:
		ms, base = *w.Delay, b.previous
		if continues {
			base = b.last[session]
		}
	default:
		return 0, fmt.Errorf("%w: neither timestamp nor delay", ErrFormat)
	}
	if ms < 0 || ms > float64(math.MaxInt64/2)/1e6 {
		return 0, fmt.Errorf("time %g ms: %w", ms, ErrRange)
	}
	at := base + time.Duration(math.Round(ms*1e6))
	if at < 0 {
		return 0, fmt.Errorf("time %g ms after %s: %w", ms, base, ErrRange)
	}
	return at, nil
}

func tokens(field string, v float64) (uint32, error) {
	if v != math.Trunc(v) {
		return 0, fmt.Errorf("%s %g: %w: not a whole number", field, v, ErrFormat)
	}
	if v < 0 || v > math.MaxInt32 {
		return 0, fmt.Errorf("%s %g: %w", field, v, ErrRange)
	}
	return uint32(v), nil
}

// Write writes the trace as JSONL. Rows of sessions with more than one turn carry
// their session number.
func (t *Trace) Write(w io.Writer) error {
	turns := make([]uint32, t.Sessions())
	for i := range t.Requests {
		turns[t.Requests[i].Session]++
	}
	out := bufio.NewWriter(w)
	var line []byte
	for i := range t.Requests {
		r := &t.Requests[i]
		line = append(line[:0], `{"timestamp": `...)
		line = strconv.AppendFloat(line, float64(r.Time)/1e6, 'f', -1, 64)
		line = append(line, `, "input_length": `...)
		line = strconv.AppendUint(line, uint64(r.Input), 10)
		line = append(line, `, "output_length": `...)
		line = strconv.AppendUint(line, uint64(r.Output), 10)
		line = append(line, `, "hash_ids": [`...)
		for j, id := range r.IDs {
			if j > 0 {
				line = append(line, ", "...)
			}
			line = strconv.AppendUint(line, uint64(id), 10)
		}
		line = append(line, ']')
		if turns[r.Session] > 1 {
			line = append(line, `, "session_id": `...)
			line = strconv.AppendUint(line, uint64(r.Session), 10)
		}
		line = append(line, "}\n"...)
		if _, err := out.Write(line); err != nil {
			return fmt.Errorf("write trace: row %d: %w", i, err)
		}
	}
	if err := out.Flush(); err != nil {
		return fmt.Errorf("write trace: %w", err)
	}
	return nil
}
