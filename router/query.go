package router

import (
	"cmp"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"github.com/kvcluster/kvcluster/shard/catalog"
)

// query serves POST /query: scores of a prompt given as tokens.
func (c *call) query() error {
	q, err := c.parse(queryBody, true)
	if err != nil {
		return err
	}
	if err := q.require(fTokens, fModelName); err != nil {
		return err
	}
	seed, err := q.seed()
	if err != nil {
		return err
	}
	return c.answerScores(prompt{kind: promptTokens, tokens: q.tokens, seed: seed})
}

// queryByHash serves POST /query_by_hash: scores of a prompt given as hashes.
func (c *call) queryByHash() error {
	q, err := c.parse(queryByHashBody, true)
	if err != nil {
		return err
	}
	p, err := q.hashPrompt()
	if err != nil {
		return err
	}
	if err := q.require(fModelName); err != nil {
		return err
	}
	if q.dialect == dynamo && q.has(fCacheSalt) {
		return &apiError{status: http.StatusBadRequest, text: "cache_salt is not accepted by /query_by_hash; block_hashes must already include the intended cache salt"}
	}
	if _, err := q.seed(); err != nil { // the LoRA fields may contradict each other here too
		return err
	}
	return c.answerScores(p)
}

// hashPrompt returns the prompt under whichever name its hashes came.
func (q *request) hashPrompt() (prompt, error) {
	sequence := fSeqHashes
	switch local, seq, old := q.has(fBlockHashes), q.has(fSeqHashes), q.has(fBlockHash); {
	case local && (seq || old):
		return prompt{}, &apiError{status: 400, text: "`block_hashes` are local and `seq_hashes` are sequence hashes: send one of them", field: "block_hashes"}
	case local:
		return prompt{kind: promptLocals, locals: q.hashes[0]}, nil
	case seq && old && !equalHashes(q.hashes[1], q.hashes[2]):
		return prompt{}, ambiguous(fSeqHashes, fBlockHash)
	case old:
		sequence = fBlockHash
	case !seq:
		missing := fBlockHashes
		if q.dialect.mooncake() {
			missing = fSeqHashes
		}
		return prompt{}, q.require(missing)
	}
	return prompt{kind: promptSequence, sequence: q.hashes[sequence-fBlockHashes]}, nil
}

func equalHashes(a, b []uint64) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return true
}

// answerScores searches and answers in the request's dialect.
func (c *call) answerScores(p prompt) error {
	r, q := c.router, c.req
	if q.dialect == mooncakeB {
		if err := q.draftOrCurrent(); err != nil {
			return err
		}
	}
	view := r.cluster.View()
	g, ok := view.Group(q.group())
	if q.dialect.mooncake() {
		done, err := c.outOfScope(g, ok)
		if done || err != nil {
			return err
		}
	} else if !ok {
		return noIndexer(q.group())
	}
	s, err := r.pool.acquire(c.r.Context())
	if err != nil {
		return err
	}
	defer r.pool.release(s)
	s.Begin(c.r.Context())
	found := r.search(s, g, p)
	if q.dialect != dynamo {
		return c.answerMooncake(s, &found)
	}
	if found.Completeness, err = c.complete(s); err != nil {
		return err
	}
	c.out = appendDynamoScores(c.out[:0], &found)
	c.json(http.StatusOK, c.out)
	return nil
}

// complete ends the searcher's request and announces what its answers lack.
func (c *call) complete(s *searcher) (Completeness, error) {
	m, err := s.Completeness()
	if err != nil {
		c.router.metrics.refused.Inc()
		return m, err
	}
	c.router.metrics.answered(m)
	c.announce(m)
	return m, nil
}

func noIndexer(k catalog.GroupKey) error {
	return &apiError{status: http.StatusNotFound, text: fmt.Sprintf("no indexer for model=%s routing_group=%s", k.Model, k.RoutingGroup)}
}

// maxHeader bounds a header's text: proxies refuse long ones.
const maxHeader = 1024

// headerText makes a text fit for a header.
func headerText(s string) string {
	s = strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return '?'
		}
		return r
	}, s)
	if len(s) > maxHeader {
		s = s[:maxHeader-3] + "..."
	}
	return s
}

// announce says in a header that an answer is not complete: for the dialects whose
// bodies have no room for it, and for proxies.
func (c *call) announce(m Completeness) {
	if m.Partial {
		c.w.Header().Set("X-Kvcluster-Partial", cmp.Or(headerText(strings.Join(m.Missing, ", ")), "true"))
	}
	if m.Stale {
		age := "true"
		if m.MapAge > 0 {
			age = "true; map_age_ms=" + strconv.FormatInt(m.MapAge.Milliseconds(), 10)
		}
		c.w.Header().Set("X-Kvcluster-Stale", age)
	}
}
