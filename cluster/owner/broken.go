package owner

// Break switches off the rule that a mutant of this package lacks, by its name, so that a
// simulation of the whole cluster can be seen to find that out. It is not for production.
// It reports false for a name that is none.
func (c *Config) Break(rule string) bool {
	b := &c.broken
	field := map[string]*bool{
		"closedFrame":  &b.closedFrame,
		"oldTenure":    &b.oldTenure,
		"earlyAck":     &b.earlyAck,
		"lateDump":     &b.lateDump,
		"keepCopies":   &b.keepCopies,
		"earlyResume":  &b.earlyResume,
		"noMark":       &b.noMark,
		"earlyOpen":    &b.earlyOpen,
		"openFaulty":   &b.openFaulty,
		"reopen":       &b.reopen,
		"adoptNoWait":  &b.adoptNoWait,
		"fencedOpen":   &b.fencedOpen,
		"purgeNoWait":  &b.purgeNoWait,
		"forgetBroken": &b.forgetBroken,

		"cursorForKept": &b.cursorForKept,
	}[rule]
	if field != nil {
		*field = true
	}
	return field != nil
}
