package gossip

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"strings"

	"github.com/hashicorp/memberlist"
)

// Meta is what a node says about itself to everybody. It changes rarely.
type Meta struct {
	Name      string // the operator's name for the node
	ServerID  string // of its data folder
	ClusterID string // empty until it has founded or joined a cluster
	Boot      uint64 // differs in every run of the node; not 0

	Raft, Link, HTTP string // addresses, host:port

	Zone    string
	Weight  float64
	Version string // of the software, for people
	// Protocol is the version of everything nodes say to each other; nodes of different
	// ones do not work together.
	Protocol int
	// Started is when the node started by its own clock, in Unix milliseconds. Of two
	// runs with the same ServerID the later one counts. Default now.
	Started int64
	// HasData: the node's log is not empty. Nobody founds a cluster beside such a node.
	HasData bool
}

// MetaMaxSize bounds a packed Meta, in bytes: memberlist sends it in one packet with
// others of its kind.
const MetaMaxSize = memberlist.MetaMaxSize

// metaVersion begins a packed Meta. Later versions append fields at the end and keep
// the number; a number that is not known is an error.
const metaVersion = 1

// ErrMeta: a packed Meta is not one.
var ErrMeta = errors.New("gossip meta damaged")

// Pack returns the wire form, at most MetaMaxSize bytes:
//
//	| version u8 | flags u8 (bit 0: HasData) | Protocol uvarint | Boot u64 | Started u64 | Weight f64 |
//	| Name | ServerID | ClusterID | Raft | Link | HTTP | Zone | Version |     each: length u8, bytes
//
// all little-endian.
func (m Meta) Pack() ([]byte, error) {
	b := make([]byte, 0, 256)
	b = append(b, metaVersion, 0)
	if m.HasData {
		b[1] |= 1
	}
	b = binary.AppendUvarint(b, uint64(max(m.Protocol, 0)))
	b = binary.LittleEndian.AppendUint64(b, m.Boot)
	b = binary.LittleEndian.AppendUint64(b, uint64(m.Started))
	b = binary.LittleEndian.AppendUint64(b, math.Float64bits(m.Weight))
	for _, s := range m.strings() {
		if len(*s) > math.MaxUint8 {
			return nil, m.tooLong(len(b) + len(*s))
		}
		b = append(b, byte(len(*s)))
		b = append(b, *s...)
	}
	if len(b) > MetaMaxSize {
		return nil, m.tooLong(len(b))
	}
	return b, nil
}

func (m *Meta) strings() [8]*string {
	return [8]*string{&m.Name, &m.ServerID, &m.ClusterID, &m.Raft, &m.Link, &m.HTTP, &m.Zone, &m.Version}
}

// tooLong names what takes the most room of what an operator can shorten.
func (m Meta) tooLong(size int) error {
	longest, what := -1, ""
	for _, c := range []struct {
		what string
		s    string
	}{{"name", m.Name}, {"zone", m.Zone}, {"raft address", m.Raft}, {"link address", m.Link}, {"HTTP address", m.HTTP}, {"version", m.Version}} {
		if len(c.s) > longest {
			longest, what = len(c.s), c.what
		}
	}
	return fault(ErrTooLong, "What the node %s says about itself takes %d bytes, and %d fit into one packet. Shorten its %s (%d bytes).",
		shorten(m.Name), size, MetaMaxSize, what, longest)
}

func shorten(s string) string {
	if len(s) > 40 {
		s = strings.ToValidUTF8(s[:40], "") + "…"
	}
	return fmt.Sprintf("%q", s)
}

// UnpackMeta reads the wire form; what is behind the known fields is from a later
// version and passed over. A bad one is ErrMeta.
func UnpackMeta(b []byte) (Meta, error) {
	bad := func(what string) (Meta, error) { return Meta{}, fmt.Errorf("%w: %s", ErrMeta, what) }
	if len(b) < 2 {
		return bad("too short")
	}
	if b[0] != metaVersion {
		return bad(fmt.Sprintf("version %d, not %d", b[0], metaVersion))
	}
	m := Meta{HasData: b[1]&1 != 0}
	b = b[2:]
	protocol, n := binary.Uvarint(b)
	if n <= 0 || protocol > math.MaxInt32 {
		return bad("protocol")
	}
	m.Protocol, b = int(protocol), b[n:]
	if len(b) < 24 {
		return bad("too short")
	}
	m.Boot = binary.LittleEndian.Uint64(b)
	m.Started = int64(binary.LittleEndian.Uint64(b[8:]))
	m.Weight = math.Float64frombits(binary.LittleEndian.Uint64(b[16:]))
	if math.IsNaN(m.Weight) || math.IsInf(m.Weight, 0) || m.Weight < 0 {
		return bad("weight")
	}
	b = b[24:]
	for _, s := range m.strings() {
		if len(b) < 1 || len(b) < 1+int(b[0]) {
			return bad("a text is cut off")
		}
		*s, b = string(b[1:1+int(b[0])]), b[1+int(b[0]):]
	}
	if m.ServerID == "" || m.Name == "" {
		return bad("no name or no server id")
	}
	return m, nil
}
