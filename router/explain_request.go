package router

import (
	"net/http"
	"strings"

	"github.com/kvcluster/kvcluster/router/internal/wire"
)

// explainPost serves POST /explain.
func (c *call) explainPost() error {
	q, err := c.parse(explainBody, false)
	if err != nil {
		return err
	}
	return c.explainRequest(q)
}

// explainGet serves GET /explain: the fields as query parameters, arrays as numbers with
// commas between.
func (c *call) explainGet() error {
	q, _ := c.router.bodies.Get().(*request)
	if q == nil {
		q = &request{}
	}
	q.reset()
	c.req = q
	for name, values := range c.r.URL.Query() {
		f, known := fieldByName[name]
		if !known || !explainBody.accept.has(f) || len(values) == 0 {
			continue
		}
		text := string(appendString(nil, values[0]))
		switch f {
		case fTokens, fBlockHashes, fSeqHashes, fBlockHash:
			text = "[" + values[0] + "]"
		case fRank:
			text = values[0]
		}
		v := wire.NewJSON([]byte(text))
		err := q.read(f, v)
		if err == nil {
			err = v.End()
		}
		if err != nil {
			return &apiError{status: http.StatusBadRequest, text: "query parameter " + name + ": " + err.Error(), field: name}
		}
		q.present |= set(f)
	}
	if err := q.resolve(); err != nil {
		return err
	}
	return c.explainRequest(q)
}

func (c *call) explainRequest(q *request) error {
	if err := q.require(fModelName, fInstance); err != nil {
		return err
	}
	c.model = q.model()
	hashes := q.has(fBlockHashes) || q.has(fSeqHashes) || q.has(fBlockHash)
	if q.has(fTokens) && hashes {
		return &apiError{status: http.StatusBadRequest, text: "send `token_ids` or hashes, not both", field: "token_ids"}
	}
	var p prompt
	var err error
	if hashes {
		p, err = q.hashPrompt()
	} else if err = q.require(fTokens); err == nil {
		p = prompt{kind: promptTokens, tokens: q.tokens}
		p.seed, err = q.seed()
	}
	if err != nil {
		return err
	}
	return c.explain(q, p)
}

func wantsText(r *http.Request) bool {
	if f := r.URL.Query().Get("format"); f != "" {
		return f == "text"
	}
	return strings.HasPrefix(r.Header.Get("Accept"), "text/plain")
}
