package gossip

import (
	"errors"
	"fmt"
)

// Kinds of errors of Join and Start. The text of such an error says in a sentence or
// two what is wrong and what to do about it.
var (
	// ErrUnresolved: a host name has no address.
	ErrUnresolved = errors.New("host name not resolved")
	// ErrNobody: nobody answers.
	ErrNobody = errors.New("nobody there")
	// ErrNotGossip: what answers is no gossip port of kvcluster.
	ErrNotGossip = errors.New("not a gossip port")
	// ErrOtherLabel: the node has another cluster label.
	ErrOtherLabel = errors.New("other cluster label")
	// ErrWrongKey: the node has another encryption key, or only one side has one.
	ErrWrongKey = errors.New("wrong encryption key")
	// ErrOtherCluster: the node belongs to another cluster.
	ErrOtherCluster = errors.New("other cluster")
	// ErrOtherProtocol: the node speaks another version.
	ErrOtherProtocol = errors.New("other protocol version")
	// ErrNameInUse: a node that is alive has this node's name.
	ErrNameInUse = errors.New("name in use")
	// ErrIdentityInUse: another process runs with this node's server id.
	ErrIdentityInUse = errors.New("server id in use")
	// ErrClock: the clocks differ too much.
	ErrClock = errors.New("clock off")
	// ErrBind: the address cannot be listened at or told to others.
	ErrBind = errors.New("address not usable")
	// ErrTooLong: the node's names and addresses do not fit into one packet.
	ErrTooLong = errors.New("names too long")
	// ErrStopped: the gossip has been closed or not been started.
	ErrStopped = errors.New("gossip not running")
)

// told is an error whose text is written for an operator and stands alone.
type told struct {
	kind error
	text string
}

func (t *told) Error() string { return t.text }
func (t *told) Unwrap() error { return t.kind }

func fault(kind error, format string, args ...any) error {
	return &told{kind: kind, text: fmt.Sprintf(format, args...)}
}
