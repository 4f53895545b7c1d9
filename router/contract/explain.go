package contract

import (
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"strings"

	"github.com/kvcluster/kvcluster/indexer"
	"github.com/kvcluster/kvcluster/indexer/blockhash"
)

// stops wants an explanation with these stops, each "count@block reason".
func stops(want ...string) check {
	return func(a Answer) string {
		var ans struct {
			Stops []struct {
				Count  string
				Block  int
				Reason string
			}
		}
		if a.Status != 200 {
			return "want 200"
		}
		if err := json.Unmarshal([]byte(a.Body), &ans); err != nil {
			return err.Error()
		}
		var got []string
		for _, x := range ans.Stops {
			got = append(got, fmt.Sprintf("%s@%d %s", x.Count, x.Block, x.Reason))
		}
		if !slices.Equal(got, want) {
			return fmt.Sprintf("stops %q, want %q", got, want)
		}
		return ""
	}
}

func (s *suite) explain() {
	g := Group{Model: "explained", BlockSize: 4}
	s.worker(g, "601", 0)
	s.worker(g, "601", 3)
	s.worker(g, "602", 0)
	s.worker(Group{Model: "elsewhere", BlockSize: 4}, "603", 0)
	s.worker(g, "604", 0)
	p := prompt(10, 22) // five blocks and two tokens
	b := Blocks{Group: g, Tokens: p, To: 5}
	ask := func(fields string) Request {
		return post("/explain", `{"model_name":"explained","token_ids":[`+list(p)+`],`+fields+`}`)
	}
	s.ask(ask(`"instance_id":601,"dp_rank":3`), stops("all tiers@0 no_events"))
	other := prompt(11, 4)
	s.store(g, "601", 0, indexer.Device, other, 0, 1)
	s.ask(ask(`"instance_id":601`), stops("all tiers@0 never_announced"))
	s.store(g, "602", 0, indexer.Device, p, 0, 5)
	s.ask(ask(`"instance_id":"602"`), stops())
	s.store(g, "601", 0, indexer.Device, p, 0, 2)
	s.store(g, "601", 0, indexer.Host, p, 2, 3)
	s.store(g, "601", 0, indexer.Device, p, 3, 4)
	s.ask(ask(`"instance_id":601,"dp_rank":0`), stops("device@2 lower_tier", "all tiers@3 tier_order"))
	s.ask(ask(`"instance_id":601,"dp_rank":null`), stops("device@2 lower_tier", "all tiers@3 tier_order"))
	s.Remove(s.T, Blocks{Instance: "601", Group: g, Tier: indexer.Device, Tokens: p, From: 3, To: 4})
	s.ask(ask(`"instance_id":601,"dp_rank":0`), stops("device@2 lower_tier", "all tiers@3 evicted"))
	s.ask(ask(`"instance_id":601,"dp_rank":0`), has(200, fmt.Sprintf(`{"gpu":8,"cpu":12,"disk":12,"blocks":5,"tokens":22,
	  "path":[{},{},{"tiers":["host_pinned"],"known":true,"tokens_hash":%d},{"tiers":[],"evicted":true},{}]}`, b.Locals()[2])))
	s.ask(ask(`"instance_id":601,"dp_rank":9`), stops("all tiers@0 unknown_rank"))
	s.ask(ask(`"instance_id":"x"`), stops("all tiers@0 unknown_worker"))
	s.ask(ask(`"instance_id":603`), stops("all tiers@0 other_group"))
	// A score and its explanation agree.
	s.ask(post("/query", `{"model_name":"explained","token_ids":[`+list(p)+`]}`), has(200, `{"instances":{"601":{"gpu":8,"cpu":12,"disk":12}}}`))
}

func (s *suite) explainForms() {
	g := Group{Model: "forms", BlockSize: 4}
	s.worker(g, "611", 0)
	b := Blocks{Group: g, Tokens: prompt(12, 9), To: 2}
	s.store(g, "611", 0, indexer.Device, b.Tokens, 0, 1)
	tokens, l := list(b.Tokens), b.Locals()
	seq := blockhash.AppendSequence(nil, l)
	for _, query := range []string{"token_ids=" + tokens, "block_hashes=" + list(l), "seq_hashes=" + list(seq)} {
		s.ask(get("/explain?model_name=forms&instance_id=611&dp_rank=0&"+query), stops("all tiers@1 never_announced"))
	}
	text := func(a Answer) string {
		for _, part := range []string{"instance 611 rank 0", "9 tokens (1 in an incomplete block", "4 tokens on the device", "0-3", "not held by anyone", "never_announced"} {
			if !strings.Contains(a.Body, part) {
				return "the text lacks " + part
			}
		}
		return ""
	}
	s.ask(get("/explain?format=text&model_name=forms&instance_id=611&token_ids="+tokens), status(200, ""), text)
	s.ask(Request{Method: "GET", Path: "/explain?model_name=forms&instance_id=611&token_ids=" + tokens, Header: [2]string{"Accept", "text/plain"}}, status(200, ""), text)
	for query, want := range map[string]check{
		"instance_id=611&token_ids=1":                                            status(422, "model_name"),
		"model_name=forms&token_ids=1":                                           status(422, "instance_id"),
		"model_name=forms&instance_id=611":                                       status(422, "token_ids"),
		"model_name=x&instance_id=611&token_ids=1":                               status(404, "no indexer for model=x"),
		"model_name=forms&instance_id=611&token_ids=1,x":                         status(400, "token_ids"),
		"model_name=forms&instance_id=611&token_ids=1&dp_rank=-1":                status(400, "dp_rank"),
		"model_name=forms&instance_id=611&token_ids=1&block_hashes=1":            status(400, "not both"),
		"model_name=forms&instance_id=611&block_hashes=1&seq_hashes=1":           status(400, "one of them"),
		"model_name=" + url.QueryEscape("\xff") + "&instance_id=611&token_ids=1": status(404, "no indexer"),
		"model_name=forms&instance_id=611&token_ids=1,2,3":                       stops("all tiers@0 prompt_too_short"),
	} {
		s.ask(get("/explain?"+query), want)
	}
}

// dump: every block with its tier, rank and parent, whatever the model's name has in it.
func (s *suite) dump() {
	g := Group{Model: "org/model:v1\n\"x\"", RoutingGroup: "g:h", BlockSize: 16}
	s.worker(g, "701", 2)
	b := Blocks{Instance: "701", Rank: 2, Group: g, Tier: indexer.Device, Tokens: prompt(13, 32), To: 2}
	s.Store(s.T, b)
	disk := b
	disk.Tier, disk.From = indexer.Disk, 1
	s.Store(s.T, disk)
	l := b.Locals()
	type event struct {
		Worker json.Number `json:"worker_id"`
		Tier   string      `json:"storage_tier"`
		Event  struct {
			Rank uint32 `json:"dp_rank"`
			Data struct {
				Stored struct {
					Parent *uint64 `json:"parent_hash"`
					Blocks []struct {
						Block uint64 `json:"block_hash"`
						Local uint64 `json:"tokens_hash"`
					}
				}
			}
		}
	}
	// blocks says of every block of the events by whom it is held, where, and below what.
	blocks := func(events []event) (out []string) {
		names := map[uint64]uint64{} // engine hash -> local hash
		for _, e := range events {
			for _, x := range e.Event.Data.Stored.Blocks {
				names[x.Block] = x.Local
			}
		}
		for _, e := range events {
			parent := "root"
			if p := e.Event.Data.Stored.Parent; p != nil {
				parent = fmt.Sprint(names[*p])
			}
			for _, x := range e.Event.Data.Stored.Blocks {
				out = append(out, fmt.Sprintf("%s/%d %s %s %d", e.Worker, e.Event.Rank, e.Tier, parent, x.Local))
				parent = fmt.Sprint(x.Local)
			}
		}
		slices.Sort(out)
		return out
	}
	want := []string{
		fmt.Sprintf("701/2 device %d %d", l[0], l[1]), fmt.Sprintf("701/2 device root %d", l[0]), fmt.Sprintf("701/2 disk %d %d", l[0], l[1]),
	}
	slices.Sort(want)
	s.ask(get("/dump?model_name="+url.QueryEscape(g.Model)), func(a Answer) string {
		var groups map[string]struct {
			BlockSize int    `json:"block_size"`
			Model     string `json:"model_name"`
			Group     string `json:"routing_group"`
			Events    []event
		}
		if err := json.Unmarshal([]byte(a.Body), &groups); err != nil {
			return err.Error()
		}
		x := groups["org/model:v1\n\"x\":g:h"]
		if len(groups) != 1 || x.BlockSize != 16 || x.Model != g.Model || x.Group != "g:h" {
			return "want one group"
		}
		if got := blocks(x.Events); !slices.Equal(got, want) {
			return fmt.Sprintf("events %q, want %q", got, want)
		}
		if x.Events[len(x.Events)-1].Tier != "disk" {
			return "device events come first"
		}
		return ""
	})
	s.ask(get("/dump?format=ndjson&model_name="+url.QueryEscape(g.Model)), func(a Answer) string {
		if ct := a.Header.Get("Content-Type"); ct != "application/x-ndjson" {
			return "content type " + ct
		}
		var events []event
		for line := range strings.Lines(a.Body) {
			var one struct {
				Key   string
				Event event
			}
			if err := json.Unmarshal([]byte(line), &one); err != nil || one.Key != "org/model:v1\n\"x\":g:h" {
				return fmt.Sprintf("%v in %s", err, line)
			}
			events = append(events, one.Event)
		}
		if got := blocks(events); !slices.Equal(got, want) {
			return fmt.Sprintf("lines %q, want %q", got, want)
		}
		return ""
	})
	empty := Group{Model: "empty", BlockSize: 4}
	s.worker(empty, "702", 0)
	s.ask(get("/dump?model_name=empty"), is(200, `{"empty:default":{"block_size":4,"model_name":"empty","routing_group":"default","events":[]}}`))
}
