package tree

// AppendMark appends what stands for all frames that the writer has taken so far, for
// Passed. Counting alone does not tell: Applied sums over lanes, and one of them may be
// ahead. Any goroutine may call it.
func (w *writer) AppendMark(dst []uint64) []uint64 {
	for _, r := range w.rings {
		dst = append(dst, r.written.Load())
	}
	return dst
}

// Passed reports whether readers see all frames of a mark. Any goroutine may call it.
func (w *writer) Passed(mark []uint64) bool {
	for i, r := range w.rings {
		if r.applied.Load() < mark[i] {
			return false
		}
	}
	return true
}
