package raftlog

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"
)

// ErrStranger: what listens at a server's address is another server, perhaps of another
// cluster.
var ErrStranger = errors.New("another server answers at this address")

// Wire carries raft over TCP. Raft itself believes whoever connects: addresses that a
// dead server had, and that somebody else has now, would let the leader of one cluster
// write into the log of another, and count the answers of one server as those of two. So
// every connection begins with who is meant.
//
//	| "KVRAFT" | version u8 | cluster length u8 | server length u8 | cluster | server |     dialing side
//	| verdict u8 |                                                                         answer
type Wire struct {
	*raft.NetworkTransport
	streams *streams
}

// WireConfig of a Wire.
type WireConfig struct {
	ServerID string
	Bind     string // host:port, as other servers reach it
	Pool     int    // connections kept to each server
	Timeout  time.Duration
	Logger   *slog.Logger
}

// NewWire listens. Nobody is let in before SetCluster. Close must be called.
func NewWire(cfg WireConfig) (*Wire, error) {
	l, err := net.Listen("tcp", cfg.Bind)
	if err != nil {
		return nil, err
	}
	at, ok := l.Addr().(*net.TCPAddr)
	if !ok || at.IP.IsUnspecified() {
		return nil, errors.Join(fmt.Errorf("%s is no address that other servers reach", cfg.Bind), l.Close())
	}
	s := &streams{listener: l, self: cfg.ServerID, greeted: make(chan net.Conn), done: make(chan struct{}), places: make(chan struct{}, maxGreeting)}
	s.cluster.Store(new(string))
	go s.run()
	return &Wire{streams: s, NetworkTransport: raft.NewNetworkTransportWithConfig(&raft.NetworkTransportConfig{
		Stream: s, MaxPool: cfg.Pool, Timeout: cfg.Timeout, Logger: HCLog(cfg.Logger),
	})}, nil
}

// SetCluster says which cluster this server belongs to.
func (w *Wire) SetCluster(id string) { w.streams.cluster.Store(&id) }

// to is an address with the server that is meant; Dial takes them apart.
func to(id raft.ServerID, at raft.ServerAddress) raft.ServerAddress {
	return raft.ServerAddress(id) + "@" + at
}

// AppendEntriesPipeline implements raft.Transport.
func (w *Wire) AppendEntriesPipeline(id raft.ServerID, at raft.ServerAddress) (raft.AppendPipeline, error) {
	return w.NetworkTransport.AppendEntriesPipeline(id, to(id, at))
}

// AppendEntries implements raft.Transport.
func (w *Wire) AppendEntries(id raft.ServerID, at raft.ServerAddress, req *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) error {
	return w.NetworkTransport.AppendEntries(id, to(id, at), req, resp)
}

// RequestVote implements raft.Transport.
func (w *Wire) RequestVote(id raft.ServerID, at raft.ServerAddress, req *raft.RequestVoteRequest, resp *raft.RequestVoteResponse) error {
	return w.NetworkTransport.RequestVote(id, to(id, at), req, resp)
}

// RequestPreVote implements raft.WithPreVote.
func (w *Wire) RequestPreVote(id raft.ServerID, at raft.ServerAddress, req *raft.RequestPreVoteRequest, resp *raft.RequestPreVoteResponse) error {
	return w.NetworkTransport.RequestPreVote(id, to(id, at), req, resp)
}

// InstallSnapshot implements raft.Transport.
func (w *Wire) InstallSnapshot(id raft.ServerID, at raft.ServerAddress, req *raft.InstallSnapshotRequest, resp *raft.InstallSnapshotResponse, data io.Reader) error {
	return w.NetworkTransport.InstallSnapshot(id, to(id, at), req, resp, data)
}

// TimeoutNow implements raft.Transport.
func (w *Wire) TimeoutNow(id raft.ServerID, at raft.ServerAddress, req *raft.TimeoutNowRequest, resp *raft.TimeoutNowResponse) error {
	return w.NetworkTransport.TimeoutNow(id, to(id, at), req, resp)
}

const (
	wireMagic   = "KVRAFT"
	wireVersion = 1
	// greetTimeout bounds how long who connects may take to say whom he means, and
	// maxGreeting how many may be at it.
	greetTimeout = 5 * time.Second
	maxGreeting  = 64
)

// verdict is the answer to a greeting.
type verdict byte

const (
	welcome verdict = iota
	otherCluster
	otherServer
	notReady // it does not know yet which cluster it belongs to
	otherVersion
)

func (v verdict) String() string {
	switch v {
	case otherCluster:
		return "it belongs to another cluster"
	case otherServer:
		return "it is another server of this cluster"
	case notReady:
		return "it has not joined yet"
	case otherVersion:
		return "it speaks another version"
	}
	return fmt.Sprintf("it answers with %d", byte(v))
}

// streams is a raft.StreamLayer.
type streams struct {
	listener net.Listener
	self     string
	cluster  atomic.Pointer[string] // "" = not known
	greeted  chan net.Conn
	places   chan struct{}
	done     chan struct{}
	closed   atomic.Bool
}

// Dial implements raft.StreamLayer.
func (s *streams) Dial(address raft.ServerAddress, timeout time.Duration) (net.Conn, error) {
	server, at, ok := strings.Cut(string(address), "@")
	cluster := *s.cluster.Load()
	if !ok || len(server) > 255 || len(cluster) > 255 {
		return nil, fmt.Errorf("raft: %q does not say which server is meant", address)
	}
	conn, err := net.DialTimeout("tcp", at, timeout)
	if err != nil {
		return nil, err
	}
	_ = conn.SetDeadline(time.Now().Add(min(timeout, greetTimeout)))
	hello := append([]byte(wireMagic), wireVersion, byte(len(cluster)), byte(len(server)))
	hello = append(append(hello, cluster...), server...)
	answer := [1]byte{}
	if _, err = conn.Write(hello); err == nil {
		_, err = io.ReadFull(conn, answer[:])
	}
	if err == nil && verdict(answer[0]) != welcome {
		err = fmt.Errorf("%w (%s): %s", ErrStranger, at, verdict(answer[0]))
	}
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return conn, conn.SetDeadline(time.Time{})
}

// run greets who connects until Close.
func (s *streams) run() {
	for {
		conn, err := s.listener.Accept()
		if err != nil {
			if s.closed.Load() {
				return
			}
			time.Sleep(10 * time.Millisecond) // no descriptors, say
			continue
		}
		select {
		case s.places <- struct{}{}:
		case <-s.done:
			conn.Close()
			return
		}
		go func() {
			ok := s.greet(conn)
			<-s.places
			if ok {
				select {
				case s.greeted <- conn:
					return
				case <-s.done:
				}
			}
			conn.Close()
		}()
	}
}

// greet answers who connects and reports whether it may stay.
func (s *streams) greet(conn net.Conn) bool {
	_ = conn.SetDeadline(time.Now().Add(greetTimeout))
	var head [len(wireMagic) + 3]byte
	if _, err := io.ReadFull(conn, head[:]); err != nil || string(head[:len(wireMagic)]) != wireMagic {
		return false
	}
	names := make([]byte, int(head[7])+int(head[8]))
	if _, err := io.ReadFull(conn, names); err != nil {
		return false
	}
	cluster, server, own := string(names[:head[7]]), string(names[head[7]:]), *s.cluster.Load()
	v := welcome
	switch {
	case head[6] != wireVersion:
		v = otherVersion
	case own == "":
		v = notReady
	case cluster != own:
		v = otherCluster
	case server != s.self:
		v = otherServer
	}
	if _, err := conn.Write([]byte{byte(v)}); err != nil || v != welcome {
		return false
	}
	return conn.SetDeadline(time.Time{}) == nil
}

// Accept implements net.Listener.
func (s *streams) Accept() (net.Conn, error) {
	select {
	case conn := <-s.greeted:
		return conn, nil
	case <-s.done:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (s *streams) Close() error {
	if !s.closed.CompareAndSwap(false, true) {
		return nil
	}
	close(s.done)
	return s.listener.Close()
}

// Addr implements net.Listener.
func (s *streams) Addr() net.Addr { return s.listener.Addr() }
