package sim

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Every test that MUTANTS.md names exists where it says, and every switch of the
// simulation is in it.
func TestMutantList(t *testing.T) {
	text, err := os.ReadFile("MUTANTS.md")
	if err != nil {
		t.Fatal(err)
	}
	folder := regexp.MustCompile("^`([a-z/]+)` ")
	name := regexp.MustCompile(`\bTest[A-Za-z]+`)
	rows := 0
	for line := range strings.Lines(string(text)) {
		cells := strings.Split(line, "|")
		if len(cells) != 5 || strings.Contains(cells[1], "---") || strings.TrimSpace(cells[1]) == "rule" {
			continue
		}
		rows++
		found := 0
		for part := range strings.SplitSeq(cells[3], ";") {
			dir := "."
			if m := folder.FindStringSubmatch(strings.TrimSpace(part)); m != nil {
				dir = filepath.Join("..", "..", filepath.FromSlash(m[1]))
			}
			for _, test := range name.FindAllString(part, -1) {
				found++
				if !hasTest(t, dir, test) {
					t.Errorf("%s: there is no %s in %s", strings.TrimSpace(cells[1]), test, dir)
				}
			}
		}
		if found == 0 {
			t.Errorf("no test is named for %q", strings.TrimSpace(cells[1]))
		}
	}
	if rows < 25 {
		t.Errorf("%d rows", rows)
	}
	for _, m := range mutants {
		if _, rule, _ := strings.Cut(m, "."); !strings.Contains(string(text), rule) {
			t.Errorf("%s is not in the list", m)
		}
	}
}

func hasTest(t *testing.T, dir, test string) bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(text), "func "+test+"(") {
			return true
		}
	}
	return false
}
