package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"unicode"

	"github.com/kvcluster/kvcluster/cmd/internal/client"
)

type queryCmd struct {
	serverFlags
	Model    string `help:"Model name." required:"" short:"m"`
	Group    string `help:"Routing group." default:"default" short:"g"`
	Tokens   string `help:"Token ids, separated by commas or spaces." short:"t"`
	File     string `help:"File with token ids (JSON array or separated by commas or white space); - reads standard input." short:"f"`
	Hashes   bool   `help:"The numbers are local block hashes, not token ids."`
	Lora     string `help:"LoRA adapter of the request."`
	Salt     string `help:"Cache salt of the request."`
	Explain  bool   `help:"Say block by block what one worker holds and why its score stops."`
	Instance string `help:"With --explain: the worker." short:"i"`
	Rank     uint32 `help:"With --explain: its rank." short:"r"`
	JSON     bool   `help:"Print the node's answer as JSON." name:"json"`
}

// Help shows the ways to give a prompt.
func (queryCmd) Help() string {
	return `Examples:
  kvcluster query --model llama-3 --tokens 1,2,3,4,5,6,7,8
  tokenize prompt.txt | kvcluster query -m llama-3 --file - --json
  kvcluster query -m llama-3 -f prompt.json --explain --instance 7`
}

// scoreAnswer is the part of the score response that the table shows; all numbers
// are tokens.
type scoreAnswer struct {
	Instances map[string]struct {
		Longest uint64            `json:"longest_matched"`
		GPU     uint64            `json:"gpu"`
		CPU     uint64            `json:"cpu"`
		Disk    uint64            `json:"disk"`
		DP      map[string]uint64 `json:"dp"`
	} `json:"instances"`
	Partial bool `json:"partial"`
	Stale   bool `json:"stale"`
}

// Run asks and prints a table, best worker first.
func (c *queryCmd) Run(a *app) error {
	cl, err := c.client()
	if err != nil {
		return err
	}
	numbers, err := c.numbers()
	if err != nil {
		return err
	}
	body := map[string]any{"model_name": c.Model, "routing_group": c.Group}
	path := "/query"
	if c.Hashes {
		path = "/query_by_hash"
		body["block_hashes"] = numbers
	} else {
		body["token_ids"] = numbers
		if c.Salt != "" {
			body["cache_salt"] = c.Salt
		}
	}
	if c.Lora != "" {
		body["lora_name"] = c.Lora
	}
	if c.Explain {
		return c.explain(a, cl, body)
	}
	if c.Instance != "" {
		return fmt.Errorf("%w: --instance goes with --explain", errUsage)
	}
	var raw json.RawMessage
	if err := cl.Post(a.ctx, path, body, &raw); err != nil {
		return fmt.Errorf("query: %w", err)
	}
	if c.JSON {
		_, err = a.stdout.Write(append(raw, '\n'))
		return err
	}
	var ans scoreAnswer
	if err := json.Unmarshal(raw, &ans); err != nil {
		return fmt.Errorf("the answer of %s is not what was expected: %w", path, err)
	}
	return printScores(a.stdout, ans, len(numbers))
}

func (c *queryCmd) explain(a *app, cl *client.Client, body map[string]any) error {
	if c.Instance == "" {
		return fmt.Errorf("%w: --explain needs --instance", errUsage)
	}
	body["instance_id"], body["dp_rank"] = instanceID(c.Instance), c.Rank
	accept := "text/plain"
	if c.JSON {
		accept = "application/json"
	}
	var raw []byte
	if err := cl.PostAccept(a.ctx, "/explain", accept, body, &raw); err != nil {
		return fmt.Errorf("explain: %w", err)
	}
	_, err := fmt.Fprintln(a.stdout, strings.TrimRight(string(raw), "\n"))
	return err
}

func (c *queryCmd) numbers() ([]json.Number, error) {
	if (c.Tokens == "") == (c.File == "") {
		return nil, fmt.Errorf("%w: give the prompt with either --tokens or --file", errUsage)
	}
	s := c.Tokens
	if c.File != "" {
		raw, err := readFileOrStdin(c.File)
		if err != nil {
			return nil, err
		}
		s = string(raw)
	}
	fields := strings.FieldsFunc(s, func(r rune) bool { return r == ',' || r == '[' || r == ']' || unicode.IsSpace(r) })
	out := make([]json.Number, len(fields))
	for i, f := range fields {
		if _, err := strconv.ParseUint(f, 10, 64); err != nil {
			if _, err := strconv.ParseInt(f, 10, 64); err != nil || !c.Hashes {
				return nil, fmt.Errorf("%w: number %d of the prompt, %q, is not a whole number", errUsage, i+1, f)
			}
		}
		out[i] = json.Number(f)
	}
	return out, nil
}

func readFileOrStdin(path string) ([]byte, error) {
	if path == "-" {
		raw, err := io.ReadAll(os.Stdin)
		if err != nil {
			return nil, fmt.Errorf("read standard input: %w", err)
		}
		return raw, nil
	}
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errUsage, err)
	}
	return raw, nil
}

func printScores(w io.Writer, ans scoreAnswer, given int) error {
	if ans.Partial {
		fmt.Fprintln(w, "PARTIAL: a part of the cluster did not answer")
	}
	if ans.Stale {
		fmt.Fprintln(w, "STALE: the node cannot prove that its map is current")
	}
	if len(ans.Instances) == 0 {
		_, err := fmt.Fprintf(w, "no worker holds the beginning of these %d tokens, or they are less than one block (kvcluster query --explain --instance ID says why for one worker)\n", given)
		return err
	}
	names := make([]string, 0, len(ans.Instances))
	for n := range ans.Instances {
		names = append(names, n)
	}
	slices.SortFunc(names, func(x, y string) int {
		a, b := ans.Instances[x], ans.Instances[y]
		if a.Longest != b.Longest {
			return int(int64(b.Longest) - int64(a.Longest))
		}
		return strings.Compare(x, y)
	})
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "INSTANCE\tLONGEST\tGPU\t+CPU\t+DISK\tBY RANK (GPU)")
	for _, n := range names {
		i := ans.Instances[n]
		ranks := ""
		for _, r := range numericKeys(i.DP) {
			ranks += fmt.Sprintf("%s:%d ", r, i.DP[r])
		}
		fmt.Fprintf(t, "%s\t%d\t%d\t%d\t%d\t%s\n", n, i.Longest, i.GPU, i.CPU, i.Disk, strings.TrimSpace(ranks))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintln(w, "numbers are leading tokens already held")
	return err
}
