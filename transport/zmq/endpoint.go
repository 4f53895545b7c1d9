package zmq

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"syscall"
	"time"

	zmq4 "github.com/pebbe/zmq4"

	"github.com/kvcluster/kvcluster/transport"
)

// maxIPCPath is sizeof(sockaddr_un.sun_path) less the terminating zero.
const maxIPCPath = 107

// endpoint is a checked endpoint text.
type endpoint struct {
	text string // as given
	ipc  string // path, when it is an ipc endpoint
	ipv6 bool   // a bracketed address: only then IPv6 is switched on
	name string // host to connect to, when it is a name and not an address
	port string
}

// parseEndpoint checks what libzmq would refuse with a bare "Invalid argument", or
// accept and never connect. bind allows wildcards and a port chosen by the system.
func parseEndpoint(text string, bind bool) (endpoint, error) {
	bad := func(format string, args ...any) (endpoint, error) {
		return endpoint{}, fmt.Errorf("%w %q: %s", transport.ErrEndpoint, text, fmt.Sprintf(format, args...))
	}
	scheme, address, ok := strings.Cut(text, "://")
	if !ok {
		return bad("no scheme, want tcp://host:port or ipc://path")
	}
	if strings.ContainsAny(text, " \t\r\n\x00") {
		return bad("blank or control character")
	}
	switch scheme {
	case "ipc":
		switch {
		case address == "":
			return bad("empty path")
		case address == "*" && !bind:
			return bad("a wildcard can only be bound")
		case len(address) > maxIPCPath:
			return bad("path of %d bytes, at most %d fit in a socket address", len(address), maxIPCPath)
		}
		return endpoint{text: text, ipc: address}, nil
	case "tcp":
	default:
		return bad("scheme %q is not supported, want tcp or ipc", scheme)
	}

	colon := strings.LastIndexByte(address, ':')
	if colon < 0 {
		return bad("no port")
	}
	host, port := address[:colon], address[colon+1:]
	switch {
	case port == "*" || port == "0":
		if !bind {
			return bad("port %s can only be bound", port)
		}
	default:
		if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
			return bad("port %q, want 1 to 65535", port)
		}
	}
	if h, bracketed := strings.CutPrefix(host, "["); bracketed {
		h, closed := strings.CutSuffix(h, "]")
		if !closed {
			return bad("no closing bracket")
		}
		if a, err := netip.ParseAddr(h); err != nil || !a.Is6() {
			return bad("%q in brackets is not an IPv6 address", h)
		}
		return endpoint{text: text, ipv6: true}, nil
	}
	switch {
	case host == "":
		return bad("no host")
	case strings.ContainsRune(host, ':'):
		return bad("an IPv6 address must stand in brackets")
	case host == "*" && !bind:
		return bad("a wildcard can only be bound")
	case host != "*" && strings.ContainsAny(host, "*/;@?#[]"):
		return bad("host %q", host)
	}
	if dottedDigits(host) {
		if _, err := netip.ParseAddr(host); err != nil {
			return bad("%q is not an IPv4 address", host)
		}
		return endpoint{text: text}, nil
	}
	if bind {
		return endpoint{text: text}, nil // the name of an interface
	}
	return endpoint{text: text, name: host, port: port}, nil
}

// dottedDigits reports text that can only be meant as an IPv4 address; libzmq
// would ask the name service for it.
func dottedDigits(s string) bool {
	return strings.Trim(s, "0123456789.") == ""
}

// bind binds s and tells apart the reasons for which it cannot.
func (e endpoint) bind(s *zmq4.Socket) error {
	// libzmq removes an existing socket file and takes its place, so a second binder
	// would silently cut off the first.
	if e.ipc != "" && e.ipc != "*" && !strings.HasPrefix(e.ipc, "@") {
		if c, err := net.DialTimeout("unix", e.ipc, time.Second); err == nil {
			c.Close()
			return fmt.Errorf("bind %s: %w", e.text, transport.ErrAddressInUse)
		}
	}
	err := s.Bind(e.text)
	switch errno := zmq4.AsErrno(err); {
	case err == nil:
		return nil
	case errno == zmq4.Errno(syscall.EADDRINUSE):
		return fmt.Errorf("bind %s: %w", e.text, transport.ErrAddressInUse)
	default:
		return e.failed("bind", err)
	}
}

// connect connects s to the target: the endpoint, or the address of its name.
func (e endpoint) connect(s *zmq4.Socket, target string) error {
	if err := s.Connect(target); err != nil {
		return e.failed("connect", err)
	}
	return nil
}

func (e endpoint) failed(op string, err error) error {
	switch zmq4.AsErrno(err) {
	case zmq4.EMTHREAD, zmq4.ETERM, zmq4.Errno(syscall.EMFILE), zmq4.Errno(syscall.ENFILE), zmq4.Errno(syscall.ENOMEM):
		// A shortage here says nothing about the endpoint.
		return fmt.Errorf("%s %s: %w", op, e.text, err)
	}
	return fmt.Errorf("%s: %w %q: %w", op, transport.ErrEndpoint, e.text, err)
}

// tune sets the options that all sockets of an endpoint have.
func (e endpoint) tune(s *zmq4.Socket, linger time.Duration, maxMessage int64) error {
	return errors.Join(
		s.SetLinger(linger),
		s.SetIpv6(e.ipv6),
		s.SetReconnectIvl(reconnectMin),
		s.SetReconnectIvlMax(reconnectMax),
		s.SetTcpKeepalive(1),
		s.SetHeartbeatIvl(heartbeatInterval),
		s.SetHeartbeatTimeout(heartbeatTimeout),
		s.SetHeartbeatTtl(heartbeatTTL),
		s.SetMaxmsgsize(maxMessage),
	)
}
