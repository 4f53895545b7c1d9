//go:build invariants

package tree

// audited panics when something does not add up. A big lane is not looked at after
// every frame: a look takes as long as there is to see.
func (l *Lane) audited() {
	if l.frames%(1+(l.stored+l.held[0]+l.held[1]+l.held[2]+l.held[3]+uint64(l.children.live))/200) != 0 {
		return
	}
	if err := l.audit(); err != nil {
		panic("tree: " + err.Error())
	}
}
