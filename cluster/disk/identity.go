package disk

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
)

// Identity is who the node of this folder is.
type Identity struct {
	// ServerID is raft's name for the folder: 32 hexadecimal digits, random, never
	// changed.
	ServerID string `json:"server_id"`
	// Name is the operator's name for the node; empty before SetName.
	Name string `json:"name,omitempty"`
	// ClusterID is empty until the node has founded or joined a cluster.
	ClusterID string `json:"cluster_id,omitempty"`
	// HasLog is set when the raft log was first opened: from then on it must be there.
	HasLog bool `json:"has_log,omitempty"`
}

// identityOnDisk is the layout of identity.json. Check is the CRC-32 (IEEE) of the
// compact form of Node, in hexadecimal.
type identityOnDisk struct {
	Format int             `json:"format"`
	Node   json.RawMessage `json:"node"`
	Check  string          `json:"check"`
}

// Identity returns who the node of this folder is.
func (f *Folder) Identity() Identity {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.mu.id
}

// SetName gives the node of this folder its name, once. Another name later is
// ErrOtherNode: members are known by name, so a renamed folder would be a second node.
func (f *Folder) SetName(name string) error {
	return f.change(func(id *Identity) error {
		if id.Name != "" && id.Name != name {
			return newFault(ErrOtherNode, nil, "The data folder %s belongs to the node %q, and this node is called %q. Start it under its own name, or give %q a folder of its own.",
				f.cfg.Dir, id.Name, name, name)
		}
		id.Name = name
		return nil
	})
}

// SetClusterID notes the cluster that the node belongs to, once. Another one later is
// ErrOtherNode.
func (f *Folder) SetClusterID(cluster string) error {
	return f.change(func(id *Identity) error {
		if id.ClusterID != "" && id.ClusterID != cluster {
			return newFault(ErrOtherNode, nil, "The data folder %s belongs to the cluster %s, not to %s. Use an empty folder to join another cluster.",
				f.cfg.Dir, id.ClusterID, cluster)
		}
		id.ClusterID = cluster
		return nil
	})
}

func (f *Folder) change(fn func(*Identity) error) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.changeLocked(fn)
}

func (f *Folder) changeLocked(fn func(*Identity) error) error {
	if f.mu.closed {
		return fmt.Errorf("data folder %s: %w", f.cfg.Dir, ErrClosed)
	}
	id := f.mu.id
	if err := fn(&id); err != nil {
		return err
	}
	if id == f.mu.id {
		return nil
	}
	if err := f.writeIdentity(id); err != nil {
		return err
	}
	f.setIdentity(id)
	return nil
}

func (f *Folder) writeIdentity(id Identity) error {
	node, err := json.Marshal(id)
	if err != nil {
		return fmt.Errorf("write identity: %w", err)
	}
	raw, err := json.MarshalIndent(identityOnDisk{Format: Format, Node: node, Check: checksum(node)}, "", "  ")
	if err != nil {
		return fmt.Errorf("write identity: %w", err)
	}
	if err := replaceFile(f.path(identityFile), append(raw, '\n')); err != nil {
		return f.explain(err, "be written")
	}
	return nil
}

func (f *Folder) setIdentity(id Identity) {
	f.mu.id = id
	f.name.Store(id.Name)
}

func checksum(node []byte) string {
	return fmt.Sprintf("%08x", crc32.ChecksumIEEE(node))
}

// readIdentity reads who the node is, or makes up a server id in a new folder.
func (f *Folder) readIdentity() error {
	raw, err := os.ReadFile(f.path(identityFile))
	if errors.Is(err, fs.ErrNotExist) {
		return f.newIdentity()
	}
	if err != nil {
		return f.explain(err, "be read")
	}
	var file identityOnDisk
	if err := json.Unmarshal(raw, &file); err != nil {
		return f.damaged(identityFile, err, "is damaged (%v)", err)
	}
	if file.Format > Format {
		return newFault(ErrFormat, nil, "The data folder %s was written by a newer version of this program (format %d, this one knows %d). Start that version, or move the folder away and join again.",
			f.cfg.Dir, file.Format, Format)
	}
	var node bytes.Buffer
	if err := json.Compact(&node, file.Node); err != nil {
		return f.damaged(identityFile, err, "is damaged (%v)", err)
	}
	if file.Format < 1 || checksum(node.Bytes()) != file.Check {
		return f.damaged(identityFile, nil, "is damaged or was edited (its checksum is wrong)")
	}
	var id Identity
	if err := json.Unmarshal(node.Bytes(), &id); err != nil {
		return f.damaged(identityFile, err, "is damaged (%v)", err)
	}
	if raw, err := hex.DecodeString(id.ServerID); err != nil || len(raw) != 16 {
		return f.damaged(identityFile, err, "is damaged (it has no server id)")
	}
	f.setIdentity(id)
	return nil
}

func (f *Folder) newIdentity() error {
	// A log without its server id is somebody's vote: it must not get a new one.
	if _, err := os.Lstat(f.path(logFile)); err == nil {
		return f.damaged(identityFile, nil, "is missing, but there is a raft log beside it")
	}
	var random [16]byte
	if _, err := rand.Read(random[:]); err != nil {
		return fmt.Errorf("make server id: %w", err)
	}
	id := Identity{ServerID: hex.EncodeToString(random[:])}
	if err := f.writeIdentity(id); err != nil {
		return err
	}
	f.setIdentity(id)
	return nil
}
