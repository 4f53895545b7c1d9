package router

import (
	"bytes"
	"fmt"

	"github.com/vmihailenco/msgpack/v5"
)

// msgpack answers with a msgpack body, keys sorted.
func (c *call) msgpack(status int, v any) error {
	var buf bytes.Buffer
	enc := msgpack.NewEncoder(&buf)
	enc.SetSortMapKeys(true)
	enc.UseCompactInts(true)
	if err := enc.Encode(v); err != nil {
		return fmt.Errorf("encode answer: %w", err)
	}
	c.send(status, "application/msgpack", buf.Bytes())
	return nil
}

// writeReason answers an error to a msgpack client. index is the element plus one.
func (c *call) writeReason(status int, text, field string, index int) {
	m := map[string]any{"error": text, "reason": text}
	if field != "" {
		m["field"] = field
	}
	if index > 0 {
		m["index"] = index - 1
	}
	if err := c.msgpack(status, m); err != nil {
		c.text(status, text)
	}
}
