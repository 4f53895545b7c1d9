package e2e

import (
	"flag"
	"fmt"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/kvcluster/kvcluster/chaos/driver"
	"github.com/kvcluster/kvcluster/chaos/mockengine"
	"github.com/kvcluster/kvcluster/indexer/blockhash"
)

var parityRequests = flag.Int("parity.requests", 0, "requests of the trace for the parity tests; 0 = a part that takes seconds, -1 = all")

func requests(part int) int {
	switch *parityRequests {
	case 0:
		return part
	case -1:
		return 1 << 30
	}
	return *parityRequests
}

// A trace replayed by 16 mock workers through real sockets, in each format, ends in
// exact parity: for the prompt of every request, /query equals the model that was fed
// the engines' own log.
func TestParity(t *testing.T) {
	for _, format := range mockengine.Formats() {
		t.Run(string(format), func(t *testing.T) {
			parity(t, requests(700), mockengine.Config{Workers: 16, Formats: []mockengine.Format{format}, BlockSize: 16, Capacity: 4096})
		})
	}
}

func TestParityMixedFormats(t *testing.T) {
	parity(t, requests(800), mockengine.Config{
		Workers: 12, Formats: []mockengine.Format{mockengine.VLLMMap, mockengine.SGLangMap, mockengine.VLLMArray, mockengine.SGLangArray, mockengine.TRTLLM},
		BlockSize: 16, Capacity: 4096, Driver: driver.Config{Policy: driver.Random},
	})
}

// SGLang's default page size: every token is a block.
func TestParityPageSizeOne(t *testing.T) {
	parity(t, 60, mockengine.Config{Workers: 4, Formats: []mockengine.Format{mockengine.SGLangMap, mockengine.SGLangArray}, BlockSize: 1, Capacity: 40_000, Hash: mockengine.HashFast})
}

// Batches that were lost on the way come back by replay, also the last ones of a
// stream, and nothing is counted twice.
func TestParityLostBatches(t *testing.T) {
	var faults []mockengine.Fault
	for _, at := range []uint64{0, 7, 50, 51, 120, 300} {
		faults = append(faults, mockengine.Fault{Kind: mockengine.Lose, Count: 3, Batch: at, Worker: -1})
	}
	parity(t, requests(600), mockengine.Config{
		Workers: 16, Formats: []mockengine.Format{mockengine.VLLMMap, mockengine.SGLangMap, mockengine.VLLMArray, mockengine.SGLangArray},
		BlockSize: 16, Capacity: 4096, Faults: faults,
	})
}

// LoRA adapters and cache salts on a part of the sessions.
func TestParityNamespaces(t *testing.T) {
	parity(t, requests(600), mockengine.Config{
		Workers: 8, Formats: []mockengine.Format{mockengine.VLLMMap, mockengine.VLLMArray}, BlockSize: 16, Capacity: 4096,
		Driver: driver.Config{LoraShare: 0.4, SaltShare: 0.4},
	})
}

// A host tier behind the device: scores per tier.
func TestParityHostTier(t *testing.T) {
	parity(t, requests(600), mockengine.Config{
		Workers: 8, Ranks: 2, Formats: []mockengine.Format{mockengine.SGLangMap}, BlockSize: 16, Capacity: 2048, HostCapacity: 8192,
	})
}

// Engines that die and come back, or start over in place, with and without a word.
func TestParityRestarts(t *testing.T) {
	parity(t, requests(600), mockengine.Config{
		Workers: 10, Formats: []mockengine.Format{mockengine.VLLMMap, mockengine.SGLangMap, mockengine.TRTLLM}, BlockSize: 16, Capacity: 4096,
		Faults: []mockengine.Fault{
			{Kind: mockengine.Restart, Batch: 40, Worker: -1},
			{Kind: mockengine.RestartInPlace, Batch: 90, Worker: -1},
			{Kind: mockengine.Clear, Batch: 120, Worker: -1},
		},
	})
}

// parity plays n requests and compares every prompt. Nodes do not disturb each other:
// these tests run side by side, after those that measure time.
func parity(t *testing.T, n int, cfg mockengine.Config) {
	t.Parallel()
	url := startNode(t, nil)
	cfg.Trace = traceOf(t, "conversation_trace.jsonl", n)
	cfg.MaxBatchRate = 4000
	f, tr, _ := startFleet(t, url, cfg)
	settle(t, url, f, 20*time.Minute)
	comparePrompts(t, url, f, tr, cfg.BlockSize)
}

// comparePrompts asks for every prompt of the plan and compares every worker's scores.
func comparePrompts(t *testing.T, url string, f *mockengine.Fleet, tr *truth, blockSize int) {
	plan := f.Plan()
	bigram := map[string]bool{}
	for _, e := range f.Endpoints() {
		if e.Format == mockengine.SGLangBigram {
			bigram[strconv.FormatUint(e.Instance, 10)] = true
		}
	}
	var wg sync.WaitGroup
	var mu sync.Mutex
	rows, bad, marked := 0, 0, 0
	for w := range 2 {
		wg.Go(func() {
			var locals, window []uint64
			for i := w; i < len(plan.Trace().Requests); i += 2 {
				p := plan.Prompt(i)
				got, marks := askBody(t, url, queryBody("parity", p))
				locals = plan.AppendLocals(locals[:0], i, blockSize)
				window = appendWindowLocals(window[:0], p, blockSize)
				mu.Lock()
				tr.mu.Lock()
				diff, n := compare(tr, got, locals, window, bigram, blockSize)
				tr.mu.Unlock()
				rows += n
				marked += marks
				if diff != "" {
					if bad++; bad <= 5 {
						t.Errorf("request %d (%d tokens): %s", i, len(p.Tokens), diff)
					}
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if bad > 0 {
		t.Errorf("%d of %d prompts have wrong answers", bad, len(plan.Trace().Requests))
	}
	if rows == 0 {
		t.Error("no worker held anything of any prompt: nothing was compared")
	}
	t.Logf("%d prompts, %d scores compared; %d answers were marked and asked for again", len(plan.Trace().Requests), rows, marked)
}

// askBody asks until an answer is complete and current, and counts those that say they
// are not, as a cluster on a busy machine may for a moment.
func askBody(t *testing.T, url string, body []byte) (ans answer, marked int) {
	t.Helper()
	await(t, 20*time.Second, func() string {
		ans = answer{}
		status, text := call(t, "POST", url+"/query", body, &ans)
		if status != 200 {
			t.Errorf("HTTP %d %s", status, text)
			return ""
		}
		if ans.Partial || ans.Stale {
			marked++
			return fmt.Sprintf("%s: partial %v, stale %v: %s", url, ans.Partial, ans.Stale, text[max(0, len(text)-300):])
		}
		return ""
	})
	return ans, marked
}

// promptDiff asks for one prompt of the plan and compares every worker's scores.
func promptDiff(t *testing.T, url string, f *mockengine.Fleet, tr *truth, request, blockSize int) string {
	t.Helper()
	p := f.Plan().Prompt(request)
	got, _ := askBody(t, url, queryBody("parity", p))
	tr.mu.Lock()
	defer tr.mu.Unlock()
	diff, _ := compare(tr, got, f.Plan().AppendLocals(nil, request, blockSize), nil, nil, blockSize)
	return diff
}

// compare returns the first difference, and how many scores above 0 there are.
func compare(tr *truth, got answer, locals, window []uint64, bigram map[string]bool, blockSize int) (string, int) {
	rows := 0
	for p := range tr.at {
		w := tr.worker(p)
		path := locals
		if bigram[w.instance] {
			path = window
		}
		walk := tr.mu.model.Walk(w, path)
		if walk[0] > 0 {
			rows++
		}
		if g := got.Scores[w.instance][w.rank]; g != walk[0]*blockSize {
			return fmt.Sprintf("worker %s rank %s: score %d tokens, truth %d", w.instance, w.rank, g, walk[0]*blockSize), rows
		}
		if i := got.Instances[w.instance]; i.CPU < walk[1]*blockSize || i.Disk < walk[3]*blockSize || i.GPU < walk[0]*blockSize {
			return fmt.Sprintf("worker %s: gpu %d cpu %d disk %d, truth of rank %s %v blocks", w.instance, i.GPU, i.CPU, i.Disk, w.rank, walk), rows
		}
	}
	for instance, i := range got.Instances {
		best := [4]int{}
		for p := range tr.at {
			if w := tr.worker(p); w.instance == instance {
				path := locals
				if bigram[instance] {
					path = window
				}
				for tier, d := range tr.mu.model.Walk(w, path) {
					best[tier] = max(best[tier], d*blockSize)
				}
			}
		}
		if i.GPU != best[0] || i.CPU != best[1] || i.Disk != best[3] || i.Longest != best[3] {
			return fmt.Sprintf("worker %s: gpu %d cpu %d disk %d longest %d, truth %v tokens", instance, i.GPU, i.CPU, i.Disk, i.Longest, best), rows
		}
	}
	return "", rows
}

// queryBody is the JSON of a query, made without reflection: prompts are long.
func queryBody(model string, p driver.Prompt) []byte {
	b := append(make([]byte, 0, 8*len(p.Tokens)+128), `{"model_name":"`...)
	b = append(append(b, model...), `","lora_name":"`...)
	b = append(append(b, p.Lora...), `","cache_salt":"`...)
	b = append(append(b, p.Salt...), `","token_ids":[`...)
	for i, tok := range p.Tokens {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendUint(b, uint64(tok), 10)
	}
	return append(b, "]}"...)
}

// appendWindowLocals appends the hashes of the pages that an EAGLE engine would make
// of a prompt: one token more than a block each.
func appendWindowLocals(dst []uint64, p driver.Prompt, blockSize int) []uint64 {
	return blockhash.Content{Tokens: p.Tokens, BlockSize: blockSize, Window: blockSize + 1}.AppendLocals(dst, p.Seed())
}
