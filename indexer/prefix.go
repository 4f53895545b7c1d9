package indexer

// Prefix says what one slot holds of a query's path however its tiers are mixed: the
// longest run of leading blocks that are in one tier or another, and how many of these
// are in which.
type Prefix struct {
	Length uint32 // blocks
	Device uint32 // of them on the device
	Host   uint32 // in host memory
	Lower  uint32 // on disk or external
}

// Raise makes every number of p at least that of o.
func (p *Prefix) Raise(o Prefix) {
	p.Length, p.Device = max(p.Length, o.Length), max(p.Device, o.Device)
	p.Host, p.Lower = max(p.Host, o.Host), max(p.Lower, o.Lower)
}

// ReadPrefix counts the prefix of a slot. depth is how far its tier walk gets, as far
// as that is known: the prefix may reach further, so what is looked at grows as long as
// it is full. buf is memory that may be used; it comes back, perhaps larger.
func ReadPrefix(r Reader, q Query, s Slot, depth uint32, buf []BlockState) (Prefix, []BlockState) {
	locals := q.Locals
	for n := min(int(depth)+32, len(locals)); ; n = min(2*n, len(locals)) {
		q.Locals = locals[:n]
		buf = r.Explain(q, s, buf[:0])
		var p Prefix
		for _, b := range buf {
			if b.Tiers == 0 {
				return p, buf
			}
			p.Length++
			if b.Tiers.Has(Device) {
				p.Device++
			}
			if b.Tiers.Has(Host) {
				p.Host++
			}
			if b.Tiers.Has(Disk) || b.Tiers.Has(External) {
				p.Lower++
			}
		}
		if n == len(locals) {
			return p, buf
		}
	}
}
