package gossip

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/memberlist"
)

// resolveTimeout bounds the resolution of one name.
const resolveTimeout = 5 * time.Second

// splitAddress takes host, host:port, [v6] and [v6]:port; the port is DefaultPort where
// there is none.
func splitAddress(addr string) (host string, port uint16, err error) {
	host, text, err := net.SplitHostPort(addr)
	if err != nil {
		host, text = strings.Trim(addr, "[]"), strconv.Itoa(DefaultPort)
		if strings.Contains(host, ":") && net.ParseIP(host) == nil {
			return "", 0, fault(ErrUnresolved, "%q is no address. Write host:port.", addr)
		}
	}
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil || host == "" {
		return "", 0, fault(ErrUnresolved, "%q is no address. Write host:port with a port up to 65535.", addr)
	}
	return host, uint16(n), nil
}

// resolve returns the addresses of a host:port.
func (c Config) resolve(ctx context.Context, addr string) ([]string, error) {
	host, port, err := splitAddress(addr)
	if err != nil {
		return nil, err
	}
	if ip, err := netip.ParseAddr(host); err == nil {
		return []string{netip.AddrPortFrom(ip.Unmap(), port).String()}, nil
	}
	ctx, cancel := context.WithTimeout(ctx, resolveTimeout)
	defer cancel()
	ips, err := c.Resolve(ctx, host)
	if err == nil && len(ips) == 0 {
		err = errors.New("it has no address")
	}
	if err != nil {
		return nil, fault(ErrUnresolved, "The host name %q cannot be resolved (%v). Check its spelling and this machine's DNS, or give an IP address.", host, reason(err))
	}
	var out []string
	for _, ip := range ips {
		out = append(out, netip.AddrPortFrom(ip.Unmap(), port).String())
	}
	return out, nil
}

// reason is an error of the network without what the sentence around it says already.
func reason(err error) string {
	var d *net.DNSError
	if errors.As(err, &d) {
		return d.Err
	}
	var o *net.OpError
	if errors.As(err, &o) && o.Err != nil {
		return o.Err.Error()
	}
	return err.Error()
}

// listen opens the sockets. memberlist takes a host that is no IP address for "all
// interfaces", so names are resolved before it sees them.
func (c Config) listen(logger *log.Logger) (t memberlist.NodeAwareTransport, ip string, port int, err error) {
	if ip, port, err = c.advertise(); err != nil {
		return nil, "", 0, err
	}
	if c.Transport != nil {
		if t, ok := c.Transport.(memberlist.NodeAwareTransport); ok {
			return t, ip, port, nil
		}
		return plain{c.Transport}, ip, port, nil
	}
	bind, err := c.one(c.Bind)
	if err != nil {
		return nil, "", 0, err
	}
	if bind.Addr() == netip.IPv6Unspecified() && ip == "" {
		return nil, "", 0, fault(ErrBind, "The gossip is bound to all addresses, and which one others reach is not known. Give an advertise address.")
	}
	nt, err := memberlist.NewNetTransport(&memberlist.NetTransportConfig{
		BindAddrs: []string{bind.Addr().String()}, BindPort: int(bind.Port()), Logger: logger,
	})
	for range 9 { // a port that is free for TCP may be taken for UDP
		if err == nil || bind.Port() != 0 {
			break
		}
		nt, err = memberlist.NewNetTransport(&memberlist.NetTransportConfig{
			BindAddrs: []string{bind.Addr().String()}, Logger: logger,
		})
	}
	if err != nil {
		return nil, "", 0, fault(ErrBind, "The gossip cannot listen at %s (%v). Stop what uses the port, or bind to another.", c.Bind, bindReason(err))
	}
	if ip != "" && port == 0 {
		port = nt.GetAutoBindPort()
	}
	return nt, ip, port, nil
}

// bindReason is the end of memberlist's chain of texts: it does not wrap.
func bindReason(err error) string {
	text := err.Error()
	if i := strings.LastIndex(text, ": "); i >= 0 {
		return text[i+2:]
	}
	return text
}

// advertise returns what Advertise says as an IP address; empty where it says nothing,
// and port 0 for the one that is bound.
func (c Config) advertise() (ip string, port int, err error) {
	if c.Advertise == "" {
		return "", 0, nil
	}
	addr := c.Advertise
	_, bindPort, err := splitAddress(c.Bind)
	if err != nil {
		return "", 0, err
	}
	if _, _, err := net.SplitHostPort(addr); err != nil {
		addr = net.JoinHostPort(strings.Trim(addr, "[]"), strconv.Itoa(int(bindPort)))
	}
	a, err := c.one(addr)
	if err != nil {
		return "", 0, err
	}
	if a.Addr().IsUnspecified() {
		return "", 0, fault(ErrBind, "The advertise address %s is no address that others can reach. Give the one of this machine.", c.Advertise)
	}
	return a.Addr().String(), int(a.Port()), nil
}

func (c Config) one(addr string) (netip.AddrPort, error) {
	all, err := c.resolve(context.Background(), addr)
	if err != nil {
		return netip.AddrPort{}, err
	}
	// IPv4 first: it is what the others most likely have too.
	for _, a := range all {
		if p := netip.MustParseAddrPort(a); p.Addr().Is4() {
			return p, nil
		}
	}
	p, err := netip.ParseAddrPort(all[0])
	if err != nil {
		return p, fmt.Errorf("address %s: %w", addr, err)
	}
	return p, nil
}
