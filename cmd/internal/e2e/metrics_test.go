package e2e

import (
	"strconv"
	"strings"
	"testing"
)

// metric adds up the series of a name that carry all of the labels (`name="value"`).
func metric(tb testing.TB, url, name string, labels ...string) float64 {
	tb.Helper()
	_, text := call(tb, "GET", url+"/metrics", nil, nil)
	sum := 0.0
next:
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, name) || !strings.ContainsAny(line[len(name):len(name)+1], " {") {
			continue
		}
		for _, l := range labels {
			if !strings.Contains(line, l) {
				continue next
			}
		}
		f := strings.Fields(line)
		v, err := strconv.ParseFloat(f[len(f)-1], 64)
		if err != nil {
			tb.Fatalf("metric %s: %v in %q", name, err, line)
		}
		sum += v
	}
	return sum
}
