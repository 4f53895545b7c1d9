package fanout

// Break switches off the rule that a mutant of this package lacks, by its name, so that a
// simulation of the whole cluster can be seen to find that out. It is not for production.
// It reports false for a name that is none.
func (c *Config) Break(rule string) bool {
	b := &c.broken
	field := map[string]*bool{
		"noHold":     &b.noHold,
		"uncounted":  &b.uncounted,
		"noClear":    &b.noClear,
		"sendClosed": &b.sendClosed,
		"early":      &b.early,
		"keepOpen":   &b.keepOpen,
		"openFirst":  &b.openFirst,
		"earlyDump":  &b.earlyDump,
		"beside":     &b.beside,
		"localLate":  &b.localLate,
		"anyLabel":   &b.anyLabel,
	}[rule]
	if field != nil {
		*field = true
	}
	return field != nil
}
