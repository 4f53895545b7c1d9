package kvcluster_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// wallReaders may look at the wall clock, each for something that no decision rests on.
var wallReaders = []string{
	"cluster/gossip/config.go",   // when the node started, told to others
	"cluster/gossip/greeting.go", // tells the time, so that clocks that are wrong are found
	"cluster/ingest/slot.go",     // when an engine says that it published, for the lag that is shown
	"cluster/member/snapshot.go", // when a file was written, for people
}

// Nodes of a cluster decide nothing by the time of day: leases, detection and waits go by
// how much time has passed. A time.Time has that in it until it is made a number or is
// stripped of it, so that is what must not be done.
func TestNothingRestsOnTheWallClock(t *testing.T) {
	used := map[string]bool{}
	for _, top := range []string{"cluster", "transport/link", "shard"} {
		err := filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			set := token.NewFileSet()
			file, err := parser.ParseFile(set, path, nil, parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			for _, at := range wallReadings(file) {
				used[filepath.ToSlash(path)] = true
				if !slices.Contains(wallReaders, filepath.ToSlash(path)) {
					t.Errorf("%s: the wall clock is read; use time.Since or compare time.Time", set.Position(at))
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, path := range wallReaders {
		if !used[path] {
			t.Errorf("%s does not read the wall clock any more: take it off the list", path)
		}
	}
}

// wallReadings finds where a time is made a number, read from one, or stripped of how
// much time has passed.
func wallReadings(file *ast.File) (at []token.Pos) {
	ast.Inspect(file, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return true
		}
		sel, ok := call.Fun.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		pkg, _ := sel.X.(*ast.Ident)
		ofTime := pkg != nil && pkg.Name == "time"
		switch sel.Sel.Name {
		case "UnixNano", "UnixMicro", "UnixMilli":
			if len(call.Args) == 0 || ofTime {
				at = append(at, call.Pos())
			}
		case "Unix":
			at = append(at, call.Pos())
		case "Round": // by 0: nobody rounds anything else by nothing
			if len(call.Args) != 1 {
				break
			}
			if lit, ok := call.Args[0].(*ast.BasicLit); ok && lit.Value == "0" {
				at = append(at, call.Pos())
			}
		}
		return true
	})
	return at
}
