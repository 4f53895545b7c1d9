package disk

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"

	"github.com/hashicorp/raft"
	raftboltdb "github.com/hashicorp/raft-boltdb/v2"
)

// store is what guard stands before: raft-boltdb, or something that fails on purpose.
type store interface {
	raft.LogStore
	raft.StableStore
}

// guard stands between raft and raft.db: it gives each entry a checksum, keeps the
// reserve free of entries, and makes room for what raft cannot do without.
type guard struct {
	folder *Folder
	bolt   store
}

var (
	_ raft.LogStore    = (*guard)(nil)
	_ raft.StableStore = (*guard)(nil)
	_ store            = (*raftboltdb.BoltStore)(nil)
)

func (g *guard) FirstIndex() (uint64, error) { return g.bolt.FirstIndex() }

func (g *guard) LastIndex() (uint64, error) { return g.bolt.LastIndex() }

// GetLog returns an entry, and an error for one that is not what was stored: bbolt does
// not check its pages, and an entry that has changed would make this node's state
// another one than everybody else's.
func (g *guard) GetLog(index uint64, log *raft.Log) error {
	if err := g.bolt.GetLog(index, log); err != nil {
		return err // raft compares with ErrLogNotFound
	}
	if err := unseal(log); err != nil {
		return g.folder.damaged(logFile, err, "is damaged (entry %d: %v)", index, err)
	}
	return nil
}

func (g *guard) StoreLog(log *raft.Log) error { return g.StoreLogs([]*raft.Log{log}) }

// StoreLogs stores entries and returns when they are on disk. It fails with ErrNoSpace
// as soon as only the reserve is left; a leader steps down then.
func (g *guard) StoreLogs(logs []*raft.Log) error {
	if g.folder.reserved() {
		return newFault(ErrNoSpace, nil, "No space is left on the disk of the data folder %s: the rest is kept for raft's term and vote. Make room there.", g.folder.cfg.Dir)
	}
	sealed := make([]*raft.Log, len(logs))
	copies := make([]raft.Log, len(logs))
	for i, l := range logs {
		copies[i] = *l
		seal(&copies[i])
		sealed[i] = &copies[i]
	}
	if err := g.bolt.StoreLogs(sealed); err != nil {
		return g.explain(err)
	}
	return nil
}

// DeleteRange drops entries. On a full disk it uses the ballast: compaction is what
// makes room inside raft.db.
func (g *guard) DeleteRange(first, last uint64) error {
	return g.must(func() error { return g.bolt.DeleteRange(first, last) })
}

// Set stores a value and returns when it is on disk.
func (g *guard) Set(key, val []byte) error {
	return g.must(func() error { return g.bolt.Set(key, sealValue(key, val)) })
}

// SetUint64 stores a number and returns when it is on disk.
func (g *guard) SetUint64(key []byte, val uint64) error {
	return g.Set(key, binary.BigEndian.AppendUint64(nil, val))
}

// Get and GetUint64 pass errors of the store on as they are: raft compares their text.
// A value that has changed is an error: with another term or vote this server could vote
// twice.
func (g *guard) Get(key []byte) ([]byte, error) {
	raw, err := g.bolt.Get(key)
	if err != nil {
		return nil, err
	}
	val, err := unsealValue(key, raw)
	if err != nil {
		return nil, g.folder.damaged(logFile, err, "is damaged (%v)", err)
	}
	return val, nil
}

func (g *guard) GetUint64(key []byte) (uint64, error) {
	val, err := g.Get(key)
	if err != nil {
		return 0, err
	}
	if len(val) != 8 {
		return 0, g.folder.damaged(logFile, nil, "is damaged (%s has %d bytes instead of 8)", key, len(val))
	}
	return binary.BigEndian.Uint64(val), nil
}

// must does a write whose failure would end the process, and gives up the ballast for
// it. bbolt rolls a failed transaction back, so trying again is safe.
func (g *guard) must(write func() error) error {
	err := write()
	if err != nil && noSpace(err) && g.folder.giveUpBallast() {
		err = write()
	}
	if err != nil {
		return g.explain(err)
	}
	return nil
}

func (g *guard) explain(err error) error {
	if noSpace(err) {
		return g.folder.explain(err, "be written")
	}
	return fmt.Errorf("write %s: %w", g.folder.path(logFile), err)
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// sealSize is what seal appends to an entry's extensions:
//
//	| extensions of others ... | CRC-32C, little-endian, over index, term, type, data and them |
const sealSize = 4

func seal(l *raft.Log) {
	sum := entrySum(l, l.Extensions)
	l.Extensions = binary.LittleEndian.AppendUint32(append([]byte(nil), l.Extensions...), sum)
}

func unseal(l *raft.Log) error {
	n := len(l.Extensions) - sealSize
	if n < 0 {
		return fmt.Errorf("no checksum")
	}
	if binary.LittleEndian.Uint32(l.Extensions[n:]) != entrySum(l, l.Extensions[:n]) {
		return fmt.Errorf("wrong checksum")
	}
	l.Extensions = l.Extensions[:n:n]
	if n == 0 {
		l.Extensions = nil
	}
	return nil
}

func entrySum(l *raft.Log, ext []byte) uint32 {
	var head [17]byte
	binary.LittleEndian.PutUint64(head[0:], l.Index)
	binary.LittleEndian.PutUint64(head[8:], l.Term)
	head[16] = byte(l.Type)
	sum := crc32.Update(0, castagnoli, head[:])
	sum = crc32.Update(sum, castagnoli, l.Data)
	return crc32.Update(sum, castagnoli, ext)
}

// valueSeal begins what sealValue appends to a value:
//
//	| value ... | 0 c r c | CRC-32C, little-endian, over key and value |
//
// A value without it was stored by an earlier version. No address, which is what values
// other than numbers are, has these bytes.
const valueSeal = "\x00crc"

func sealValue(key, val []byte) []byte {
	out := append(append([]byte(nil), val...), valueSeal...)
	return binary.LittleEndian.AppendUint32(out, valueSum(key, val))
}

func unsealValue(key, raw []byte) ([]byte, error) {
	n := len(raw) - len(valueSeal) - 4
	if n < 0 || string(raw[n:n+len(valueSeal)]) != valueSeal {
		return raw, nil
	}
	if binary.LittleEndian.Uint32(raw[n+len(valueSeal):]) != valueSum(key, raw[:n]) {
		return nil, fmt.Errorf("wrong checksum of %s", key)
	}
	return raw[:n:n], nil
}

func valueSum(key, val []byte) uint32 {
	return crc32.Update(crc32.Update(0, castagnoli, key), castagnoli, val)
}
