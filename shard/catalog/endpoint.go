package catalog

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// ErrEndpoint is wrapped by every error of ParseEndpoint.
var ErrEndpoint = errors.New("invalid ZMQ endpoint")

// Binds reports whether a registered endpoint means that this side binds and the
// engines connect: a TCP host of *.
func Binds(endpoint string) bool { return strings.HasPrefix(endpoint, "tcp://*:") }

// CheckEndpoint checks the syntax of a ZeroMQ endpoint. tcp needs a host and a port
// that fits 16 bits, IPv6 in brackets; host * and port 0 pass; ipc and inproc pass
// with any address. The texts are part of the HTTP contract.
func CheckEndpoint(endpoint string) error {
	if reason := endpointFault(endpoint); reason != "" {
		return fmt.Errorf("%w `%s`: %s", ErrEndpoint, endpoint, reason)
	}
	return nil
}

func endpointFault(endpoint string) string {
	scheme, addr, ok := strings.Cut(endpoint, "://")
	switch {
	case !ok:
		return "missing scheme"
	case addr == "":
		return "missing address"
	case scheme == "ipc" || scheme == "inproc":
		return ""
	case scheme != "tcp":
		return fmt.Sprintf("unsupported scheme `%s`", scheme)
	}
	host, port := "", ""
	if strings.HasPrefix(addr, "[") {
		end := strings.IndexByte(addr, ']')
		if end < 0 {
			return "missing closing `]`"
		}
		host = addr[1:end]
		rest := addr[end+1:]
		if !strings.HasPrefix(rest, ":") {
			return "missing TCP port"
		}
		port = rest[1:]
	} else {
		if strings.Count(addr, ":") != 1 {
			return "missing TCP port"
		}
		host, port, _ = strings.Cut(addr, ":")
	}
	if host == "" {
		return "missing TCP host"
	}
	if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		return fmt.Sprintf("invalid TCP port: %q is not a number from 0 to 65535", port)
	}
	return ""
}
