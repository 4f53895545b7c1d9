package transport

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"unicode"
)

// Limits of a mesh, where its configuration says nothing.
const (
	// DefaultMeshMessage is MeshConfig.MaxMessage: what the largest dump of a slot may
	// need in one answer.
	DefaultMeshMessage = 64 << 20
	// DefaultMeshQueue is MeshConfig.QueueBytes: a quarter of a second of a 10 Gb/s
	// link would be 300 MB, so this bounds memory, not stalls; links above resend.
	DefaultMeshQueue = 16 << 20
	// MeshQueueMessages is how many messages may wait for one peer.
	MeshQueueMessages = 16_384
	// maxNodeName leaves room for the boot id in a routing id, which has 255 bytes.
	maxNodeName = 200
)

// Mesh passes messages between named nodes, and promises little: a message may be
// lost, and after a reconnection it may come late or twice. What arrives is whole.
// Package transport/link makes sessions out of that.
//
// All methods may be called from any goroutine. None waits for a peer.
type Mesh interface {
	// Endpoint is the address in use, with the real port.
	Endpoint() string
	// SetPeer says where a node listens; an empty endpoint forgets it. A bad endpoint
	// is refused and leaves what was known. Setting the same again changes nothing.
	SetPeer(name, endpoint string) error
	// Send sends one message made of the parts one behind the other. The parts are
	// copied before it returns. It reports false when the message certainly does not
	// go out: unknown peer, no connection, full queue, too long, closed. True promises
	// nothing.
	Send(to string, parts ...[]byte) bool
	// Close returns when the handler is no longer called and the address is free. It
	// must not be called from the handler.
	Close() error
}

// MeshNetwork makes meshes. Packages zmq and memory have one each.
type MeshNetwork interface {
	// NewMesh binds and starts to receive before it returns.
	NewMesh(cfg MeshConfig) (Mesh, error)
}

// MeshConfig describes a node's end of a mesh.
type MeshConfig struct {
	Name string // of this node, as others call it
	// Boot tells this run of the node from earlier ones: a restarted node is let in
	// although the connections of its predecessor still seem to stand.
	Boot uint64
	Bind string // endpoint to listen on
	// MaxMessage bounds a message in bytes, in both directions; 0 = DefaultMeshMessage.
	MaxMessage int64
	// QueueBytes bounds what waits for one peer, without the buffers of the system;
	// 0 = DefaultMeshQueue.
	QueueBytes int64
	// Handler receives every message, from one goroutine. from is the name that the
	// sender gives itself. message is valid until it returns. It must not wait: sending
	// stands still meanwhile.
	Handler func(from string, message []byte)
	// Logger; nil = slog.Default().
	Logger *slog.Logger
}

// ErrMeshConfig: a mesh cannot be made from this configuration.
var ErrMeshConfig = errors.New("invalid mesh configuration")

// WithDefaults fills in what is zero.
func (c MeshConfig) WithDefaults() MeshConfig {
	if c.MaxMessage == 0 {
		c.MaxMessage = DefaultMeshMessage
	}
	if c.QueueBytes == 0 {
		c.QueueBytes = DefaultMeshQueue
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return c
}

// Validate reports every field that cannot be used. Endpoints are checked by the
// implementation.
func (c MeshConfig) Validate() error {
	var errs []error
	bad := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("%w: %s", ErrMeshConfig, fmt.Sprintf(format, args...)))
	}
	if err := CheckNodeName(c.Name); err != nil {
		errs = append(errs, err)
	}
	if c.MaxMessage < 0 || c.QueueBytes < 0 {
		bad("MaxMessage %d and QueueBytes %d must not be negative", c.MaxMessage, c.QueueBytes)
	}
	if c.Handler == nil {
		bad("no Handler")
	}
	return errors.Join(errs...)
}

// CheckNodeName reports a name that no node can have.
func CheckNodeName(name string) error {
	switch {
	case name == "":
		return fmt.Errorf("%w: a node needs a name", ErrMeshConfig)
	case len(name) > maxNodeName:
		return fmt.Errorf("%w: node name of %d bytes, at most %d", ErrMeshConfig, len(name), maxNodeName)
	case strings.ContainsFunc(name, func(r rune) bool { return unicode.IsSpace(r) || unicode.IsControl(r) }):
		return fmt.Errorf("%w: node name %q has a blank or control character", ErrMeshConfig, name)
	}
	return nil
}
