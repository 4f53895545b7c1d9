package router

import (
	"net/http"
	"net/url"
	"strconv"
	"strings"
)

// members serves GET /members.
func (c *call) members() error {
	b := append(c.out[:0], '[')
	for _, m := range c.router.cluster.Members() {
		b = append(comma(b), '{')
		b = appendStringField(b, "name", m.Name)
		b = appendStringField(b, "address", m.Address)
		b = appendStringField(b, "http", m.HTTP)
		b = appendStringField(b, "role", m.Role)
		b = appendStringField(b, "phase", m.Phase)
		b = appendBoolField(b, "alive", m.Alive)
		b = appendUintField(b, "since_seconds", uint64(m.Since.Seconds()))
		b = appendStringField(b, "boot", strconv.FormatUint(m.Boot, 16)) // above what JSON numbers hold exactly
		b = appendStringField(b, "zone", m.Zone)
		b = appendFloatField(b, "weight", m.Weight)
		b = appendStringField(b, "version", m.Version)
		b = appendUintField(b, "partitions", uint64(m.Partitions))
		b = appendUintField(b, "ready_partitions", uint64(m.Ready))
		b = append(appendUintField(b, "sources", uint64(m.Sources)), '}')
	}
	c.out = append(b, ']')
	c.json(http.StatusOK, c.out)
	return nil
}

// shards serves GET /shards.
func (c *call) shards() error {
	s := c.router.cluster.Shards()
	b := append(c.out[:0], `{"partitions":[`...)
	for i, p := range s.Partitions {
		b = appendUint(append(comma(b), `{"partition":`...), uint64(i))
		b = append(appendKey(b, "owners"), '[')
		for _, o := range p.Owners {
			b = appendStringField(append(comma(b), '{'), "name", o.Name)
			b = append(appendBoolField(b, "ready", o.Ready), '}')
		}
		b = append(appendStrings(append(b, ']'), "receivers", p.Receivers), ""...)
		if p.HeldBlocks >= 0 {
			b = appendUintField(b, "held_blocks", uint64(p.HeldBlocks))
		}
		b = append(b, '}')
	}
	b = append(b, `],"changes":[`...)
	for _, j := range s.Changes {
		b = appendUint(append(comma(b), `{"id":`...), j.ID)
		b = append(appendKey(b, "moves"), '[')
		for _, m := range j.Moves {
			b = appendUint(append(comma(b), `{"partition":`...), uint64(m.Partition))
			if m.To != "" {
				b = appendStringField(b, "to", m.To)
			}
			if m.Drop != "" {
				b = appendStringField(b, "drop", m.Drop)
			}
			b = append(b, '}')
		}
		b = appendStrings(append(b, ']'), "waiting_for", j.Waiting)
		b = appendUintField(b, "copies_done", uint64(j.Done))
		b = appendUintField(b, "copies", uint64(j.Total))
		b = appendUintField(b, "bytes", j.Bytes)
		b = append(appendUintField(b, "bytes_per_second", uint64(j.Rate)), '}')
	}
	c.out = append(b, "]}"...)
	c.json(http.StatusOK, c.out)
	return nil
}

// leaveMember serves POST /members/{name}/leave: accepted, not done.
func (c *call) leaveMember() error {
	if err := c.router.cluster.Leave(c.r.Context(), c.member); err != nil {
		return err
	}
	c.json(http.StatusAccepted, []byte(`{"status":"leaving"}`))
	return nil
}

// removeMember serves DELETE /members/{name}, with ?force=true for one that is alive.
func (c *call) removeMember() error {
	force, err := queryBool(c.r.URL.Query(), "force")
	if err != nil {
		return err
	}
	if err := c.router.cluster.Remove(c.r.Context(), c.member, force); err != nil {
		return err
	}
	return c.ok(http.StatusOK)
}

// snapshot serves POST /snapshot.
func (c *call) snapshot() error {
	res, err := c.router.cluster.Snapshot(c.r.Context())
	if err != nil {
		return err
	}
	b := appendStringField(append(c.out[:0], '{'), "path", res.Path)
	b = appendUintField(b, "bytes", uint64(res.Bytes))
	b = appendUintField(b, "slots", uint64(res.Slots))
	b = appendUintField(b, "copies", uint64(res.Copies))
	b = appendUintField(b, "held_blocks", res.Blocks)
	c.out = append(appendFloatField(b, "seconds", res.Took.Seconds()), '}')
	c.json(http.StatusOK, c.out)
	return nil
}

// queryBool reads a query parameter: absent is false, empty is true.
func queryBool(v url.Values, name string) (bool, error) {
	if !v.Has(name) {
		return false, nil
	}
	if v.Get(name) == "" {
		return true, nil
	}
	b, err := strconv.ParseBool(v.Get(name))
	if err != nil {
		return false, &apiError{status: http.StatusBadRequest, text: "query parameter " + name + ": want true or false, not " + strconv.Quote(v.Get(name)), field: name}
	}
	return b, nil
}

// memberRoute finds the routes with a member's name in their path.
func (r *Router) memberRoute(path string) (rt *route, member string) {
	rest, ok := strings.CutPrefix(path, "/members/")
	if !ok {
		return nil, ""
	}
	template := "/members/{name}"
	if name, ok := strings.CutSuffix(rest, "/leave"); ok {
		rest, template = name, "/members/{name}/leave"
	}
	if rest == "" || strings.Contains(rest, "/") {
		return nil, ""
	}
	return r.routes[template], rest
}

func appendStrings(b []byte, key string, list []string) []byte {
	b = append(appendKey(b, key), '[')
	for _, s := range list {
		b = appendString(comma(b), s)
	}
	return append(b, ']')
}
