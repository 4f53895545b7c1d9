package client

import "encoding/json"

// ID is the id of an instance, which a node writes as a number where it can. As text
// none of its 64 bits is lost.
type ID string

// UnmarshalJSON takes a number as its digits, and a string as it is.
func (id *ID) UnmarshalJSON(raw []byte) error {
	if len(raw) > 0 && raw[0] != '"' {
		var n json.Number
		if err := json.Unmarshal(raw, &n); err != nil {
			return err
		}
		*id = ID(n)
		return nil
	}
	return json.Unmarshal(raw, (*string)(id))
}
