package engine

// interner keeps one copy of strings that come again and again. It holds at most
// 2 x max strings: when the young generation is full it becomes the old one, and
// what is then asked for moves back, so names in use survive a flood of others.
type interner struct {
	max        int
	last       string
	young, old map[string]string
}

// maxInterned is the longest string worth keeping.
const maxInterned = 512

func (t *interner) get(b []byte) string {
	if len(b) == 0 {
		return ""
	}
	if t.last == string(b) {
		return t.last
	}
	s, ok := t.young[string(b)]
	if !ok {
		if s, ok = t.old[string(b)]; !ok {
			s = string(b)
		}
		if len(b) > maxInterned {
			return s
		}
		if len(t.young) >= t.max {
			t.young, t.old = t.old, t.young
			clear(t.young)
		}
		if t.young == nil {
			t.young = make(map[string]string)
		}
		t.young[s] = s
	}
	t.last = s
	return s
}

func (t *interner) len() int { return len(t.young) + len(t.old) }
