package kvcluster_test

import (
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"strings"
	"testing"
)

const module = "github.com/kvcluster/kvcluster/"

// mayImport says which folders of this module each top-level folder may use besides
// itself. Imports point one way: cmd -> router, cluster -> shard, indexer, transport.
var mayImport = map[string][]string{
	"indexer":   {},
	"shard":     {},
	"transport": {"indexer"}, // transport/engine decodes into indexer's tiers and hashes multimodal keys
	"cluster":   {"shard", "indexer", "transport"},
	"router":    {"shard", "indexer"},
	"chaos":     {"cluster", "router", "shard", "indexer", "transport"},
	"cmd":       {"cluster", "router", "shard", "indexer", "transport", "chaos"},
	"deploy":    {}, // no code, only the test of its files
}

// leaves may import nothing of the module but transport itself and what is internal to
// it, although their folder may.
var leaves = []string{"transport", "transport/zmq", "transport/memory"}

type pkg struct {
	ImportPath   string
	Imports      []string
	TestImports  []string
	XTestImports []string
}

func TestImportsPointOneWay(t *testing.T) {
	for _, p := range packages(t) {
		path := strings.TrimPrefix(p.ImportPath, module)
		if path == p.ImportPath {
			continue // the root: this test
		}
		top, _, _ := strings.Cut(path, "/")
		allowed, known := mayImport[top]
		if !known {
			t.Errorf("%s: top-level folder %s is not one of the fixed ones", p.ImportPath, top)
			continue
		}
		for _, imp := range p.Imports {
			dep, ours := strings.CutPrefix(imp, module)
			if !ours {
				continue
			}
			depTop, _, _ := strings.Cut(dep, "/")
			ok := depTop == top
			for _, a := range allowed {
				ok = ok || depTop == a
			}
			for _, leaf := range leaves {
				if path == leaf && dep != "transport" && !strings.HasPrefix(dep, "transport/internal/") {
					ok = false
				}
			}
			if !ok {
				t.Errorf("%s imports %s: imports point one way (see ARCHITECTURE.md)", path, dep)
			}
		}
	}
}

// The public packages must not depend on test devices.
func TestNothingImportsChaosButCommands(t *testing.T) {
	for _, p := range packages(t) {
		path := strings.TrimPrefix(p.ImportPath, module)
		if strings.HasPrefix(path, "chaos") || strings.HasPrefix(path, "cmd") {
			continue
		}
		for _, imp := range p.Imports {
			if strings.HasPrefix(imp, module+"chaos") {
				t.Errorf("%s imports %s outside a test", path, imp)
			}
		}
	}
}

func packages(t *testing.T) []pkg {
	t.Helper()
	cmd := exec.Command("go", "list", "-json=ImportPath,Imports,TestImports,XTestImports", "./...")
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, stderr.String())
	}
	var pkgs []pkg
	dec := json.NewDecoder(strings.NewReader(string(out)))
	for {
		var p pkg
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		pkgs = append(pkgs, p)
	}
	if len(pkgs) < 5 {
		t.Fatalf("go list found %d packages", len(pkgs))
	}
	return pkgs
}
