package translate

import "github.com/kvcluster/kvcluster/indexer/blockhash"

// spaceTable interns namespaces. A space lives while a run uses it.
type spaceTable struct {
	list  []space
	byKey map[spaceKey]uint32
	free  []uint32
}

// spaceKey is a namespace as the hashes of its two names (blockhash.Namespace). It is
// the note that runs carry; the one without names needs none.
type spaceKey struct{ lora, salt uint64 }

type space struct {
	spaceKey
	seed uint64 // of local hashes
	runs int
}

// init interns the namespace of root blocks that name none; it is number 0 and stays.
func (s *spaceTable) init(lora, salt string) {
	s.byKey = map[spaceKey]uint32{}
	s.hold(s.intern(lora, salt))
}

// intern returns the number of a namespace. It is good until the next intern,
// unless a run holds it by then.
func (s *spaceTable) intern(lora, salt string) uint32 {
	var k spaceKey
	k.lora, k.salt = blockhash.Namespace(lora, salt)
	return s.internKey(k)
}

func (s *spaceTable) internKey(k spaceKey) uint32 {
	if i, ok := s.byKey[k]; ok {
		return i
	}
	var i uint32
	if n := len(s.free); n > 0 {
		i, s.free = s.free[n-1], s.free[:n-1]
	} else {
		i = uint32(len(s.list))
		s.list = append(s.list, space{})
	}
	s.list[i] = space{spaceKey: k, seed: blockhash.Seed + k.lora + k.salt}
	s.byKey[k] = i
	return i
}

func (s *spaceTable) seed(ns uint32) uint64 { return s.list[ns].seed }

func (s *spaceTable) note(ns uint32) [2]uint64 {
	k := s.list[ns].spaceKey
	return [2]uint64{k.lora, k.salt}
}

// tag is the path tag of the namespace's root.
func (s *spaceTable) tag(ns uint32) uint16 { return uint16(s.list[ns].seed * 0xff51afd7ed558ccd >> 48) }

func (s *spaceTable) hold(ns uint32) uint32 {
	s.list[ns].runs++
	return ns
}

func (s *spaceTable) release(ns uint32) {
	if s.list[ns].runs--; s.list[ns].runs == 0 {
		delete(s.byKey, s.list[ns].spaceKey)
		s.list[ns] = space{}
		s.free = append(s.free, ns)
	}
}

// agrees reports whether what an event names fits namespace ns.
func (s *spaceTable) agrees(ns uint32, lora, salt string) bool {
	if lora == "" && salt == "" {
		return true
	}
	l, x := blockhash.Namespace(lora, salt)
	return (lora == "" || l == s.list[ns].lora) && (salt == "" || x == s.list[ns].salt)
}

// differ reports whether both name a value, and not the same.
func differ(a, b string) bool { return a != "" && b != "" && a != b }
