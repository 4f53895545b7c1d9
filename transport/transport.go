package transport

import (
	"context"
	"errors"
	"time"
)

// Errors of every implementation, wrapped with operation and subject.
var (
	// ErrEndpoint: the endpoint text cannot be used (syntax, scheme, host, port).
	ErrEndpoint = errors.New("invalid endpoint")
	// ErrAddressInUse: another socket is bound to the endpoint.
	ErrAddressInUse = errors.New("address in use")
	// ErrClosed: the loop, network or socket is closed.
	ErrClosed = errors.New("closed")
)

// Network makes loops and the engines' side of the sockets. Package zmq has the
// real one, package memory the twin that runs inside a testing/synctest bubble.
type Network interface {
	// NewLoop returns a loop that has not started. name appears in logs and metrics.
	NewLoop(name string) (Loop, error)
	// NewPublisher opens the engine side: a PUB socket and, if asked for, a replay
	// ROUTER. Safe for use by one goroutine at a time.
	NewPublisher(cfg PublisherConfig) (Publisher, error)
}

// Loop is one goroutine that owns sockets and runs everything that happens on them:
// message handlers, connection events, timers and posted functions, one at a
// time. So whatever is touched only from a loop needs no lock.
//
// Run and Post may be called from any goroutine; all other methods only from a
// function that runs on the loop.
type Loop interface {
	// Run works until ctx is done, then closes every socket and returns nil. An error
	// means that it could not start. A loop can be run once.
	Run(ctx context.Context) error
	// Post makes fn run on the loop, in the order of the calls. It never blocks
	// for longer than a lock; once the loop is ending it reports false. A function for
	// which it reported true runs, even if the loop ends first.
	Post(fn func()) bool

	// Subscribe opens a SUB socket. It returns before the connection stands; a
	// binding socket is bound when it returns (or the error wraps ErrAddressInUse).
	Subscribe(cfg SubscribeConfig, h SubscribeHandler) (Socket, error)
	// OpenReplay opens a DEALER to an engine's replay endpoint.
	OpenReplay(endpoint string, h ReplayHandler) (ReplaySocket, error)
	// AfterFunc runs fn on the loop after d. Stop reports whether it was prevented.
	AfterFunc(d time.Duration, fn func()) Timer
	// Now is the loop's clock: virtual in the twin.
	Now() time.Time
	// Stats returns counters of the loop. Safe from any goroutine.
	Stats() LoopStats
}

// Timer can be stopped, from its loop only.
type Timer interface{ Stop() bool }

// Socket can be closed, from its loop only. After Close no handler is called.
type Socket interface{ Close() }

// SubscribeConfig describes one subscription.
type SubscribeConfig struct {
	Endpoint string // scheme://address; connects to it, or binds with Bind
	Bind     bool   // engines push: this side binds and any number of publishers connect
	Topic    string // byte prefix that messages must have; empty = everything
	// HighWater is the receive high-water mark in messages; 0 = 200,000 (libzmq's
	// own default of 1,000 loses batches in bursts).
	HighWater int
	// MaxMessage bounds one frame in bytes; larger ones end the connection. 0 = 64 MiB.
	MaxMessage int64
}

// SubscribeHandler receives what happens on a subscription, on its loop.
type SubscribeHandler interface {
	// OnMessage gets the frames of one message, as many as were sent. They are
	// valid until it returns.
	OnMessage(frames [][]byte)
	// OnConnect: a connection to a publisher now stands (the ZMTP handshake is
	// done). On a bound socket: one more publisher came.
	//
	// On a connecting socket this is the border between two connections: every
	// message of the earlier one comes before it, every message of the new one after.
	// The subscription itself reaches the publisher a little later, so the first
	// messages that it sends now may be missed.
	OnConnect()
	// OnDisconnect: a connection was lost; messages may have been lost with it, and
	// some that were not may still come. The socket reconnects by itself with
	// back-off. On a bound socket the peer may be one that never became a publisher.
	OnDisconnect()
}

// ReplayHandler receives the replies of a replay socket, on its loop.
type ReplayHandler interface {
	// OnReply gets the frames of one reply behind the empty delimiter, as sent.
	OnReply(frames [][]byte)
	OnConnect()
	OnDisconnect()
}

// ReplaySocket asks for replays.
type ReplaySocket interface {
	Socket
	// Request asks for every buffered batch from sequence start on:
	// [empty][8 bytes big-endian]. Replies come through the handler. The request
	// waits inside the socket until the peer is there.
	Request(start uint64) error
}

// LoopStats counts what a loop has done since it started.
type LoopStats struct {
	Name         string
	Sockets      int
	Messages     uint64
	Bytes        uint64
	Wakeups      uint64
	Connects     uint64
	Disconnects  uint64
	PendingPosts int
}

// PublisherConfig describes the engine side of a stream.
type PublisherConfig struct {
	Endpoint       string // PUB; a port 0 or * is chosen by the system, see Publisher.Endpoint
	Connect        bool   // push mode: the PUB connects to a bound SUB
	ReplayEndpoint string // ROUTER that answers replay requests; empty = none
	Buffer         int    // batches kept for replay; 0 = 10,000 (vLLM's default)
	HighWater      int    // send high-water mark; 0 = 100,000 (vLLM's default)
	// FourFrames: replay replies carry the topic (vLLM 0.26 on, TensorRT-LLM);
	// otherwise three frames (older vLLM, SGLang).
	FourFrames bool
}

// Publisher is a mock engine's pair of sockets.
type Publisher interface {
	// Publish sends [topic][seq, 8 bytes big-endian][payload] and keeps the batch
	// for replay. The payload is copied.
	Publish(topic string, seq uint64, payload []byte) error
	// Record keeps a batch for replay without sending it: a lost batch.
	Record(topic string, seq uint64, payload []byte) error
	// SendRaw sends any frames and keeps nothing: for garbage.
	SendRaw(frames ...[]byte) error
	// ForgetReplay empties the replay buffer, as a restarted engine's is.
	ForgetReplay() error
	// Endpoint and ReplayEndpoint return the addresses in use, with real ports.
	Endpoint() string
	ReplayEndpoint() string
	// Close sends what is queued for at most a second and closes both sockets.
	Close() error
}
