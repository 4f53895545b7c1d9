package link

// Break switches off the rule that a mutant of this package lacks, by its name, so that a
// simulation of the whole cluster can be seen to find that out. It is not for production.
// It reports false for a name that is none.
func (c *Config) Break(rule string) bool {
	b := &c.broken
	field := map[string]*bool{
		"duplicates":  &b.duplicates,
		"earlyAck":    &b.earlyAck,
		"ignoreBoot":  &b.ignoreBoot,
		"noResend":    &b.noResend,
		"mixSessions": &b.mixSessions,
		"ownClock":    &b.ownClock,
	}[rule]
	if field != nil {
		*field = true
	}
	return field != nil
}
