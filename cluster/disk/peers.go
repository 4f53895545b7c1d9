package disk

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
)

// maxPeers bounds the addresses that are remembered.
const maxPeers = 64

// Peers returns the gossip addresses that SavePeers wrote last, so that a node that
// comes back alone finds the others without a seed. It is a hint: a file that cannot be
// read is none.
func (f *Folder) Peers() []string {
	raw, err := os.ReadFile(f.path(peersFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	var addrs []string
	if err == nil {
		err = json.Unmarshal(raw, &addrs)
	}
	if err != nil {
		f.log.Warn("remembered peers cannot be read; the seeds must do", "file", f.path(peersFile), "err", err)
		return nil
	}
	return addrs[:min(len(addrs), maxPeers)]
}

// SavePeers remembers gossip addresses, the first 64 of them. It writes only when they
// differ from what was written last.
func (f *Folder) SavePeers(addrs []string) error {
	raw, err := json.Marshal(addrs[:min(len(addrs), maxPeers)])
	if err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.mu.closed {
		return ErrClosed
	}
	if f.mu.peers == string(raw) {
		return nil
	}
	if err := replaceFile(f.path(peersFile), raw); err != nil {
		return f.explain(err, "be written")
	}
	f.mu.peers = string(raw)
	return nil
}
