package node

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
)

// addresses are those at which other nodes reach this one. They are kept in the data
// folder, because the log of a cluster that starts again as a whole knows its servers
// by address.
type addresses struct {
	Gossip string `json:"gossip"`
	Raft   string `json:"raft"`
	Link   string `json:"link"`
}

const addressesFile = "addresses.json"

// GossipAddress returns the membership address of the node with that data folder, which
// is what others join.
func GossipAddress(data string) (string, error) {
	a, err := lastAddresses(data)
	if err == nil && a.Gossip == "" {
		err = errors.New("the node has not started yet")
	}
	if err != nil {
		return "", fmt.Errorf("membership address of the node in %s: %w", data, err)
	}
	return a.Gossip, nil
}

func lastAddresses(data string) (a addresses, err error) {
	raw, err := os.ReadFile(filepath.Join(data, addressesFile))
	if errors.Is(err, os.ErrNotExist) {
		return addresses{}, nil
	}
	if err == nil {
		err = json.Unmarshal(raw, &a)
	}
	return a, err
}

// chooseAddresses takes what the configuration says, else what was used last time, else
// the default ports, else (when joining on a machine where these are taken) free ones.
func chooseAddresses(cfg *ClusterConfig) (addresses, error) {
	last, err := lastAddresses(cfg.Data)
	if err != nil {
		return addresses{}, fmt.Errorf("addresses of last time: %w (delete %s to choose new ones)", err, filepath.Join(cfg.Data, addressesFile))
	}
	host := cfg.Host
	if host == "" && len(cfg.Seeds) > 0 {
		if host, err = hostTowards(cfg.Seeds[0]); err != nil {
			return addresses{}, err
		}
	}
	if host == "" {
		host = "127.0.0.1"
	}
	var out addresses
	for _, a := range []struct {
		to           *string
		given, last  string
		port, flag   string
		alsoDatagram bool
	}{
		{&out.Gossip, cfg.Gossip, last.Gossip, DefaultGossipPort, "gossip", true},
		{&out.Raft, cfg.Raft, last.Raft, DefaultRaftPort, "raft", false},
		{&out.Link, cfg.Link, last.Link, DefaultLinkPort, "link", false},
	} {
		switch {
		case a.given != "":
			*a.to, err = usable(a.given, a.alsoDatagram)
		case a.last != "" && cfg.Host == "":
			if *a.to, err = usable(a.last, a.alsoDatagram); err != nil {
				err = fmt.Errorf("%w. The node of this data folder had that address last time: if it still runs, or a copy of its folder is in use, stop that one; else give another address", err)
			}
		default:
			if *a.to, err = usable(net.JoinHostPort(host, a.port), a.alsoDatagram); err != nil && len(cfg.Seeds) > 0 {
				*a.to, err = usable(net.JoinHostPort(host, "0"), a.alsoDatagram)
			}
		}
		if err != nil {
			return addresses{}, fmt.Errorf("--%s: %w", a.flag, err)
		}
	}
	return out, nil
}

func (a addresses) save(dir string) error {
	raw, err := json.MarshalIndent(a, "", "  ")
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, addressesFile), append(raw, '\n'), 0o644)
	}
	if err != nil {
		return fmt.Errorf("keep the addresses of this node: %w", err)
	}
	return nil
}

// usable opens the address for a moment and returns it with its port.
func usable(addr string, datagrams bool) (string, error) {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return "", fmt.Errorf("cannot listen on %s: %w", addr, err)
	}
	defer l.Close()
	at := l.Addr().String()
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return "", err
	}
	_, port, err := net.SplitHostPort(at)
	if err != nil {
		return "", err
	}
	at = net.JoinHostPort(host, port)
	if datagrams {
		u, err := net.ListenPacket("udp", at)
		if err != nil {
			return "", fmt.Errorf("cannot listen on %s (udp): %w", at, err)
		}
		u.Close()
	}
	return at, nil
}

// hostTowards returns the address of this machine on the way to another one. Nothing is
// sent.
func hostTowards(seed string) (string, error) {
	c, err := net.Dial("udp", seed)
	if err != nil {
		return "", fmt.Errorf("no way to %s: %w. Check the address; --host says how others reach this node", seed, err)
	}
	defer c.Close()
	host, _, err := net.SplitHostPort(c.LocalAddr().String())
	return host, err
}
