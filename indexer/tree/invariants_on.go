//go:build invariants

package tree

// audited panics when something does not add up.
func (l *Lane) audited() {
	if err := l.audit(); err != nil {
		panic("tree: " + err.Error())
	}
}
