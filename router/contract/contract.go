// Package contract is the HTTP contract as a test suite: one table of requests and
// expected answers, for every server that claims to keep it.
//
//	func TestContract(t *testing.T) { contract.Run(t, site) }
//
// A Site is one node or several that are one index. The suite knows it through HTTP and
// through engines that it lets store and remove blocks. What changes nothing, refusals
// included, is asked of every node, and all have to answer alike; what changes something
// is sent to the nodes in turn. The fake of package router, a node alone, and a cluster
// of five run the same table.
//
// # What it covers
//
//	framework.go   what a server answers before a handler looks at anything; limits of bodies
//	register.go    registering, unregistering, listing, pausing workers
//	query.go       scores by tokens and by hashes, namespaces, bigram pages, ranks and tiers
//	mooncake.go    the other dialect, in JSON and msgpack
//	explain.go     explanations and dumps
//
// # What it does not do
//
// It does not judge an index under traffic (chaos does), nor what a node answers about
// itself (/metrics, /status, /members, /shards).
package contract

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kvcluster/kvcluster/indexer"
	"github.com/kvcluster/kvcluster/indexer/blockhash"
)

// Site is what is judged. It is empty in the beginning, and mounts the test routes.
type Site struct {
	Nodes int
	// Do sends a request to a node, 0 to Nodes-1.
	Do func(t testing.TB, node int, r Request) Answer
	// Endpoint is where the engine of a rank publishes, and where it replays ("" = nowhere).
	Endpoint func(t testing.TB, instance string, rank uint32) (endpoint, replay string)
	// Store lets an engine, registered before, say that it stores blocks, and Remove that it
	// has them no longer. Both return when every node knows.
	Store, Remove func(t testing.TB, b Blocks)
	// Patience is how long a node may take to see what another one was told; 0 = no time.
	Patience time.Duration
}

// Request is one HTTP request.
type Request struct {
	Method, Path, ContentType, Body string
	Header                          [2]string // one more header, name and value
}

// Answer is what came back.
type Answer struct {
	Status int
	Header http.Header
	Body   string
}

// Blocks are blocks [From, To) of a prompt, which an engine has in a tier. What is before
// From the engine has stored before, in any tier.
type Blocks struct {
	Instance   string
	Rank       uint32
	Group      Group
	Tier       indexer.Tier
	From, To   int
	Tokens     []uint32
	Lora, Salt string
	Bigram     bool // EAGLE pages, each with one token of the next
}

// Group is an index group.
type Group struct {
	Model, RoutingGroup string
	BlockSize           int
}

// Locals are the local hashes of the prompt's first To blocks.
func (b *Blocks) Locals() []uint64 {
	seed := blockhash.NamespaceSeed(b.Lora, b.Salt)
	if b.Bigram {
		return blockhash.Content{Tokens: b.Tokens, BlockSize: b.Group.BlockSize, Window: b.Group.BlockSize + 1}.AppendLocals(nil, seed)[:b.To]
	}
	return blockhash.AppendTokens(nil, b.Tokens, b.Group.BlockSize, seed)[:b.To]
}

// Run runs the whole suite.
func Run(t *testing.T, site Site) {
	s := &suite{Site: site}
	for _, part := range []struct {
		name string
		run  func(*suite)
	}{
		{"framework", (*suite).framework}, {"body limits", (*suite).limits}, {"health", (*suite).health}, {"peers", (*suite).peers},
		{"register", (*suite).register}, {"endpoints", (*suite).endpoints}, {"unregister", (*suite).unregister}, {"workers", (*suite).workers},
		{"listener control", (*suite).listeners},
		{"worked example", (*suite).workedExample}, {"prompts", (*suite).prompts}, {"namespaces", (*suite).namespaces}, {"hashes", (*suite).hashes},
		{"bigram pages", (*suite).bigram},
		{"mooncake draft", (*suite).mooncakeDraft}, {"mooncake ranks", (*suite).mooncakeRanks}, {"mooncake long", (*suite).mooncakeLong},
		{"mooncake JSON", (*suite).mooncakeJSON}, {"mooncake msgpack", (*suite).mooncakeMsgpack},
		{"explain", (*suite).explain}, {"explain forms", (*suite).explainForms}, {"dump", (*suite).dump},
	} {
		t.Run(part.name, func(t *testing.T) {
			s.T = t
			part.run(s)
		})
	}
}

type suite struct {
	Site
	*testing.T
	turn int
}

// check judges an answer; "" is right.
type check func(a Answer) string

// ask sends a request that changes nothing to every node.
func (s *suite) ask(r Request, checks ...check) {
	s.Helper()
	for node := range s.Nodes {
		deadline := time.Now().Add(s.Patience)
		for {
			problem, a := s.once(node, r, checks)
			if problem == "" {
				break
			}
			if !time.Now().Before(deadline) {
				s.Errorf("node %d, %s %s %.300s: %s\n%d %.2000s", node, r.Method, r.Path, r.Body, problem, a.Status, a.Body)
				break
			}
			time.Sleep(10 * time.Millisecond)
		}
	}
}

// change sends a request once, to the node whose turn it is.
func (s *suite) change(r Request, checks ...check) {
	s.Helper()
	node := s.turn % s.Nodes
	s.turn++
	if problem, a := s.once(node, r, checks); problem != "" {
		s.Fatalf("node %d, %s %s %.300s: %s\n%d %.2000s", node, r.Method, r.Path, r.Body, problem, a.Status, a.Body)
	}
}

func (s *suite) once(node int, r Request, checks []check) (string, Answer) {
	a := s.Do(s.T, node, r)
	for _, c := range checks {
		if problem := c(a); problem != "" {
			return problem, a
		}
	}
	return "", a
}

func get(path string) Request { return Request{Method: "GET", Path: path} }

func post(path, body string) Request {
	return Request{Method: "POST", Path: path, ContentType: "application/json", Body: body}
}

// status wants a status and a part of the body.
func status(code int, part string) check {
	return func(a Answer) string {
		if a.Status != code || !strings.Contains(a.Body, part) {
			return fmt.Sprintf("want %d with %q", code, part)
		}
		return ""
	}
}

// is wants a status and a body; one that begins with { or [ is compared as JSON.
func is(code int, body string) check {
	return func(a Answer) string {
		switch {
		case a.Status != code:
			return fmt.Sprintf("want %d %s", code, body)
		case body == "" || body[0] != '{' && body[0] != '[':
			if a.Body != body {
				return fmt.Sprintf("want %d %q", code, body)
			}
			return ""
		case a.Header.Get("Content-Type") != "application/json":
			return fmt.Sprintf("content type %q", a.Header.Get("Content-Type"))
		}
		return decoded(body, a.Body, func(want, got any) string {
			if d := cmp.Diff(want, got); d != "" {
				return "body (-want +got):\n" + d
			}
			return ""
		})
	}
}

// has wants a status and a JSON object that has at least these fields: of objects in it
// too, and of lists the same number of elements.
func has(code int, body string) check {
	return func(a Answer) string {
		if a.Status != code {
			return fmt.Sprintf("want %d with %s", code, body)
		}
		return decoded(body, a.Body, func(want, got any) string { return lacks("", want, got) })
	}
}

// decoded compares two bodies as values.
func decoded(want, got string, compare func(want, got any) string) string {
	w, err := decode(want)
	if err != nil {
		return fmt.Sprintf("the suite is wrong: %v", err)
	}
	g, err := decode(got)
	if err != nil {
		return err.Error()
	}
	return compare(w, g)
}

func lacks(at string, want, got any) string {
	switch w := want.(type) {
	case map[string]any:
		g, ok := got.(map[string]any)
		if !ok {
			return fmt.Sprintf("%s: %v is no object", at, got)
		}
		for k, v := range w {
			if _, ok := g[k]; !ok {
				return fmt.Sprintf("%s lacks %q", at, k)
			}
			if p := lacks(at+"/"+k, v, g[k]); p != "" {
				return p
			}
		}
		return ""
	case []any:
		g, ok := got.([]any)
		if !ok || len(g) != len(w) {
			return fmt.Sprintf("%s: %v, want %d elements", at, got, len(w))
		}
		for i := range w {
			if p := lacks(fmt.Sprintf("%s/%d", at, i), w[i], g[i]); p != "" {
				return p
			}
		}
		return ""
	}
	if want != got {
		return fmt.Sprintf("%s: %v, want %v", at, got, want)
	}
	return ""
}

// decode keeps numbers as texts, so that u64 values compare exactly.
func decode(text string) (any, error) {
	dec := json.NewDecoder(bytes.NewReader([]byte(text)))
	dec.UseNumber()
	var v any
	if err := dec.Decode(&v); err != nil {
		return nil, fmt.Errorf("not JSON: %w", err)
	}
	return v, nil
}

// list writes numbers as the inside of a JSON list.
func list[N uint32 | uint64 | int64](v []N) string {
	return strings.Trim(strings.ReplaceAll(fmt.Sprint(v), " ", ","), "[]")
}

// prompt makes n tokens that no other prompt has: the hash of their first block is theirs.
func prompt(first uint32, n int) []uint32 {
	out := make([]uint32, n)
	for i := range out {
		out[i] = first<<8 + uint32(i*7)
	}
	return out
}

// worker registers a rank in Dynamo's dialect.
func (s *suite) worker(g Group, instance string, rank uint32) {
	s.Helper()
	endpoint, replay := s.Endpoint(s.T, instance, rank)
	body := map[string]any{"instance_id": instance, "dp_rank": rank, "endpoint": endpoint, "model_name": g.Model, "block_size": g.BlockSize}
	if replay != "" {
		body["replay_endpoint"] = replay
	}
	if g.RoutingGroup != "" {
		body["routing_group"] = g.RoutingGroup
	}
	raw, err := json.Marshal(body)
	if err != nil {
		s.Fatal(err)
	}
	s.change(post("/register", string(raw)), is(201, `{"status":"ok"}`))
}

// store lets an engine store blocks of a prompt.
func (s *suite) store(g Group, instance string, rank uint32, tier indexer.Tier, tokens []uint32, from, to int) {
	s.Helper()
	s.Store(s.T, Blocks{Instance: instance, Rank: rank, Group: g, Tier: tier, Tokens: tokens, From: from, To: to})
}
