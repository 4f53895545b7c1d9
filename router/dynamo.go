package router

// appendDynamoScores appends the score response of Dynamo's indexer. All numbers are
// tokens. scores and dp look at the device tier only; cpu and disk add up along the tier
// walk; the numbers of an instance are the maximum over its ranks.
func appendDynamoScores(b []byte, s *scores) []byte {
	b = append(b, `{"scores":{`...)
	open := ""
	for p, d := range s.board.all {
		name := &s.names.ranks[p]
		if d[0] == 0 {
			continue
		}
		if open != name.instance {
			if open != "" {
				b = append(b, '}')
			}
			open = name.instance
			b = append(append(comma(b), name.key...), '{')
		}
		b = appendRank(b, name.rank, s.tokens(d[0]))
	}
	if open != "" {
		b = append(b, '}')
	}
	b = append(b, `},"frequencies":[],"instances":{`...)
	b = appendDynamoInstances(b, s)
	b = append(b, '}')
	return append(appendCompleteness(b, s.Completeness), '}')
}

func appendDynamoInstances(b []byte, s *scores) []byte {
	var best depths // of the open instance
	open := ""
	dp := make([]byte, 0, 64)
	flush := func() {
		if open == "" {
			return
		}
		gpu, cpu, disk := s.tokens(best[0]), s.tokens(best[1]), s.tokens(best[len(best)-1])
		b = appendUint(append(b, `{"longest_matched":`...), max(gpu, cpu, disk))
		b = appendUint(append(b, `,"gpu":`...), gpu)
		b = append(append(append(b, `,"dp":{`...), dp...), '}')
		b = appendUint(append(b, `,"cpu":`...), cpu)
		b = appendUint(append(b, `,"disk":`...), disk)
		b = append(b, '}')
	}
	for p, d := range s.board.all {
		name := &s.names.ranks[p]
		if name.instance != open {
			flush()
			open, best, dp = name.instance, depths{}, dp[:0]
			b = append(comma(b), name.key...)
		}
		for t := range best {
			best[t] = max(best[t], d[t])
		}
		if len(dp) > 0 {
			dp = append(dp, ',')
		}
		dp = append(dp, '"')
		dp = appendUint(dp, uint64(name.rank))
		dp = append(dp, '"', ':')
		dp = appendUint(dp, s.tokens(d[0]))
	}
	flush()
	return b
}

// appendRank appends one rank of a map by ranks.
func appendRank(b []byte, rank uint32, tokens uint64) []byte {
	b = append(comma(b), '"')
	b = appendUint(b, uint64(rank))
	b = append(b, '"', ':')
	return appendUint(b, tokens)
}

// appendCompleteness appends the fields that say what is missing, if anything is.
func appendCompleteness(b []byte, m Completeness) []byte {
	if m.Partial {
		b = append(appendKey(b, "partial"), "true"...)
		b = append(appendKey(b, "missing"), '[')
		for _, part := range m.Missing {
			b = appendString(comma(b), part)
		}
		b = append(b, ']')
	}
	if m.Stale {
		b = append(appendKey(b, "stale"), "true"...)
		if m.MapAge > 0 {
			b = appendUintField(b, "map_age_ms", uint64(m.MapAge.Milliseconds()))
		}
	}
	return b
}
