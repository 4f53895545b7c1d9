package search

// Break switches off the rule that a mutant of this package lacks, by its name, so that a
// simulation of the whole cluster can be seen to find that out. It is not for production.
// It reports false for a name that is none.
func (c *Config) Break(rule string) bool {
	b := &c.broken
	field := map[string]*bool{
		"leaseFirst": &b.leaseFirst,
		"unreadable": &b.unreadable,
		"lateMark":   &b.lateMark,
		"anyOwner":   &b.anyOwner,
		"otherBoot":  &b.otherBoot,
		"oldView":    &b.oldView,
		"behind":     &b.behind,
		"noLease":    &b.noLease,
		"whole":      &b.whole,
	}[rule]
	if field != nil {
		*field = true
	}
	return field != nil
}
