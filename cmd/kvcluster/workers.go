package main

import (
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"text/tabwriter"
	"time"

	"github.com/kvcluster/kvcluster/cmd/internal/client"
)

// serverFlags are the flags of every command that talks to a node.
type serverFlags struct {
	Server  string        `help:"Address of a node, or of several with commas: the next one is asked when one does not answer." default:"http://127.0.0.1:8090" short:"s"`
	Timeout time.Duration `help:"Give up after this time." default:"30s"`
}

func (f *serverFlags) client() (*client.Client, error) {
	c, err := client.New(f.Server, f.Timeout)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errUsage, err)
	}
	return c, nil
}

type registerCmd struct {
	serverFlags
	Instance    string `arg:"" help:"Worker id as gateways know it (a number or a text)."`
	Endpoint    string `arg:"" help:"Address of its event publisher, tcp://host:port; tcp://*:port means: bind here, the engine connects."`
	Model       string `help:"Model name." required:"" short:"m"`
	BlockSize   uint32 `help:"Tokens per block (the engine's block or page size)." required:"" short:"b"`
	Group       string `help:"Routing group." default:"default" short:"g"`
	Rank        uint32 `help:"Data-parallel rank." default:"0" short:"r"`
	Replay      string `help:"Address of its replay socket; without it a lost batch costs the worker's cache."`
	Topic       string `help:"Only messages with this topic (needed when several engines push to one address)."`
	Lora        string `help:"LoRA name of events that carry none."`
	Salt        string `help:"Cache salt of events that carry none."`
	CountCopies bool   `help:"Count physical copies: a block stored twice must be removed twice."`
	JSON        bool   `help:"Print the node's answer as JSON." name:"json"`
}

// Help shows how engines are registered.
func (registerCmd) Help() string {
	return `Examples:
  kvcluster register 7 tcp://10.0.0.7:5557 --model llama-3 --block-size 16
  kvcluster register 7 tcp://10.0.0.7:5558 --rank 1 -m llama-3 -b 16 --replay tcp://10.0.0.7:6558
  kvcluster register pod-a 'tcp://*:5557' --topic kv@pod-a@llama-3 -m llama-3 -b 16`
}

// Run registers one rank.
func (c *registerCmd) Run(a *app) error {
	cl, err := c.client()
	if err != nil {
		return err
	}
	body := map[string]any{
		"instance_id": instanceID(c.Instance), "endpoint": c.Endpoint, "model_name": c.Model,
		"block_size": c.BlockSize, "routing_group": c.Group, "dp_rank": c.Rank,
	}
	for k, v := range map[string]string{"replay_endpoint": c.Replay, "topic": c.Topic, "lora_name": c.Lora, "cache_salt": c.Salt} {
		if v != "" {
			body[k] = v
		}
	}
	if c.CountCopies {
		body["count_copies"] = true
	}
	var raw []byte
	if err := cl.Post(a.ctx, "/register", body, &raw); err != nil {
		return fmt.Errorf("register %s rank %d: %w", c.Instance, c.Rank, err)
	}
	if c.JSON {
		_, err = a.stdout.Write(append(raw, '\n'))
		return err
	}
	_, err = fmt.Fprintf(a.stdout, "registered %s rank %d at %s. See how its stream does: kvcluster workers\n", c.Instance, c.Rank, c.Endpoint)
	return err
}

// instanceID keeps a decimal number a JSON number, which every dialect accepts.
func instanceID(s string) any {
	if n, err := strconv.ParseUint(s, 10, 64); err == nil && strconv.FormatUint(n, 10) == s {
		return n
	}
	return s
}

type unregisterCmd struct {
	serverFlags
	Instance string  `arg:"" help:"Worker id."`
	Model    string  `help:"Model name." required:"" short:"m"`
	Group    string  `help:"Routing group; needed with --rank." short:"g"`
	Rank     *uint32 `help:"Only this rank; the last rank takes the worker with it." short:"r"`
	JSON     bool    `help:"Print the node's answer as JSON." name:"json"`
}

// Help shows the two uses.
func (unregisterCmd) Help() string {
	return `Examples:
  kvcluster unregister 7 --model llama-3
  kvcluster unregister 7 -m llama-3 -g default --rank 1`
}

// Run removes a worker or a rank; it returns when its blocks are gone.
func (c *unregisterCmd) Run(a *app) error {
	cl, err := c.client()
	if err != nil {
		return err
	}
	if c.Rank != nil && c.Group == "" {
		return fmt.Errorf("%w: --rank needs --group (without a group the whole worker would go)", errUsage)
	}
	body := map[string]any{"instance_id": instanceID(c.Instance), "model_name": c.Model}
	if c.Group != "" {
		body["routing_group"] = c.Group
	}
	if c.Rank != nil {
		body["dp_rank"] = *c.Rank
	}
	var raw []byte
	if err := cl.Post(a.ctx, "/unregister", body, &raw); err != nil {
		return fmt.Errorf("unregister %s: %w", c.Instance, err)
	}
	if c.JSON {
		_, err = a.stdout.Write(append(raw, '\n'))
		return err
	}
	_, err = fmt.Fprintf(a.stdout, "unregistered %s; its blocks are gone from the index\n", c.Instance)
	return err
}

type workersCmd struct {
	serverFlags
	Model string `help:"Only this model." short:"m"`
	Group string `help:"Only this routing group." short:"g"`
	JSON  bool   `help:"Print JSON, as GET /workers answers." name:"json"`
}

// Help shows the filters.
func (workersCmd) Help() string {
	return `Examples:
  kvcluster workers
  kvcluster workers --model llama-3 --json | jq '.[].listeners'`
}

// workerEntry is the part of GET /workers that the table shows.
type workerEntry struct {
	Instance  client.ID `json:"instance_id"`
	Status    string    `json:"status"`
	Model     string    `json:"model_name"`
	Group     string    `json:"routing_group"`
	BlockSize uint32    `json:"block_size"`
	Listeners map[string]struct {
		Endpoint  string   `json:"endpoint"`
		Status    string   `json:"status"`
		LastError string   `json:"last_error"`
		Warnings  []string `json:"warnings"`
	} `json:"listeners"`
}

// Run prints one line a rank.
func (c *workersCmd) Run(a *app) error {
	cl, err := c.client()
	if err != nil {
		return err
	}
	q := url.Values{"model_name": {c.Model}, "routing_group": {c.Group}}
	var raw json.RawMessage
	if err := cl.Get(a.ctx, "/workers", q, &raw); err != nil {
		return err
	}
	if c.JSON {
		_, err = a.stdout.Write(append(raw, '\n'))
		return err
	}
	var ws []workerEntry
	if err := json.Unmarshal(raw, &ws); err != nil {
		return fmt.Errorf("the answer of /workers is not what was expected: %w", err)
	}
	if len(ws) == 0 && (c.Model != "" || c.Group != "") {
		_, err := fmt.Fprintln(a.stdout, "no worker of that model and group is registered")
		return err
	}
	if len(ws) == 0 {
		_, err := fmt.Fprintln(a.stdout, "no workers are registered (kvcluster register --help)")
		return err
	}
	t := tabwriter.NewWriter(a.stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "INSTANCE\tRANK\tSTATUS\tMODEL\tGROUP\tBLOCK\tENDPOINT\tREMARKS")
	for _, w := range ws {
		for _, rank := range numericKeys(w.Listeners) {
			l := w.Listeners[rank]
			remark := l.LastError
			if remark == "" && len(l.Warnings) == 0 && l.Status == "pending" {
				remark = "not connected yet: does a publisher listen there?"
			}
			for _, s := range l.Warnings {
				if remark != "" {
					remark += "; "
				}
				remark += s
			}
			fmt.Fprintf(t, "%v\t%s\t%s\t%s\t%s\t%d\t%s\t%s\n", w.Instance, rank, l.Status, w.Model, w.Group, w.BlockSize, l.Endpoint, remark)
		}
	}
	return t.Flush()
}

func numericKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, func(a, b string) int {
		x, _ := strconv.ParseUint(a, 10, 64)
		y, _ := strconv.ParseUint(b, 10, 64)
		if x != y {
			return int(int64(x) - int64(y))
		}
		return len(a) - len(b)
	})
	return keys
}
