package deploy

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

type compose struct {
	Name     string
	Node     any `yaml:"x-node"`
	Services map[string]service
	Networks map[string]struct {
		IPAM struct{ Config []map[string]string }
	}
	Volumes map[string]struct{}
	Secrets map[string]struct{ File string }
}

type service struct {
	Image       string
	Build       struct{ Context, Dockerfile string }
	Restart     string
	Stop        string `yaml:"stop_grace_period"`
	Command     []string
	Environment map[string]string
	Secrets     []string
	Volumes     []string
	Ports       []string
	Networks    map[string]struct {
		Address string `yaml:"ipv4_address"`
	}
	DependsOn   map[string]struct{ Condition string } `yaml:"depends_on"`
	Healthcheck struct{ Disable bool }
	ReadOnly    bool     `yaml:"read_only"`
	CapDrop     []string `yaml:"cap_drop"`
	Security    []string `yaml:"security_opt"`
	Ulimits     map[string]int
	Memory      string `yaml:"mem_limit"`
}

func (s service) address() string { return s.Networks["kv"].Address }

// value returns what follows a flag.
func (s service) value(flag string) string {
	if i := slices.Index(s.Command, flag); i >= 0 && i+1 < len(s.Command) {
		return s.Command[i+1]
	}
	return ""
}

func checkCompose(f files, b *binary) (errs []error) {
	var c compose
	if err := fromYAML(f["compose.yaml"], &c); err != nil {
		return []error{err}
	}
	fail := func(format string, a ...any) { errs = append(errs, fmt.Errorf(format, a...)) }
	var targets []string
	founders := ""
	for name, s := range c.Services {
		if s.Image == "kvcluster" {
			if err := b.check(s.Command); err != nil {
				fail("%s: %w", name, err)
				continue
			}
			for v := range s.Environment {
				if !b.commands[s.Command[0]].variables[v] {
					fail("%s: kvcluster %s reads no variable %s", name, s.Command[0], v)
				}
			}
			if !s.ReadOnly || !slices.Contains(s.CapDrop, "ALL") {
				fail("%s: may write or keeps capabilities", name)
			}
		}
		for on, how := range s.DependsOn {
			if o, ok := c.Services[on]; !ok || o.Healthcheck.Disable || how.Condition != "service_healthy" {
				fail("%s: waits for %s to be %s", name, on, how.Condition)
			}
		}
		for _, v := range s.Volumes {
			from, _, _ := strings.Cut(v, ":")
			if _, ok := c.Volumes[from]; !ok && f[strings.TrimPrefix(from, "./")] == "" {
				fail("%s: no volume or file %s", name, from)
			}
		}
		for _, v := range s.Secrets {
			if c.Secrets[v].File == "" || s.Environment["KVCLUSTER_KEY_FILE"] != "/run/secrets/"+v {
				fail("%s: secret %s", name, v)
			}
		}
		for _, p := range s.Ports {
			if !strings.HasPrefix(p, "127.0.0.1:") {
				fail("%s: port %s is open to everybody", name, p)
			}
		}
		switch {
		case s.Image != "kvcluster":
		case s.Command[0] == "serve":
			founders += name
			fallthrough
		case s.Command[0] == "join":
			if s.value("--name") != name || s.value("--host") != s.address() {
				fail("%s: named %s, at %s, its address is %s", name, s.value("--name"), s.value("--host"), s.address())
			}
			_, port, _ := strings.Cut(s.Environment["KVCLUSTER_LISTEN"], ":")
			targets = append(targets, s.address()+":"+port)
		case s.Command[0] == "mock":
			if s.value("--bind-host") != s.address() {
				fail("%s: publishes at %s, its address is %s", name, s.value("--bind-host"), s.address())
			}
		}
	}
	if founders != "n1" || len(targets) != 3 {
		return append(errs, fmt.Errorf("%q found the cluster, %d nodes", founders, len(targets)))
	}
	first := c.Services[founders].address()
	for name, s := range c.Services {
		if s.Image == "kvcluster" && s.Command[0] == "join" && s.Command[1] != first+":7946" {
			fail("%s joins %s, the first node is at %s", name, s.Command[1], first)
		}
		if to := s.value("--register"); to != "" && !slices.Contains(targets, strings.TrimPrefix(to, "http://")) {
			fail("%s registers at %s (%s), nodes are %v", name, to, hostOf(to), targets)
		}
	}
	return append(errs, checkScrape(f, targets)...)
}

func checkScrape(f files, nodes []string) []error {
	var p struct {
		Global map[string]string
		Rules  []string `yaml:"rule_files"`
		Scrape []struct {
			Job    string                       `yaml:"job_name"`
			Static []struct{ Targets []string } `yaml:"static_configs"`
		} `yaml:"scrape_configs"`
	}
	if err := fromYAML(f["prometheus.yml"], &p); err != nil {
		return []error{fmt.Errorf("prometheus.yml: %w", err)}
	}
	if len(p.Scrape) != 1 || len(p.Scrape[0].Static) != 1 || !slices.Equal(p.Rules, []string{"alerts.yml"}) {
		return []error{fmt.Errorf("prometheus.yml: %+v", p)}
	}
	slices.Sort(nodes)
	if got := slices.Sorted(slices.Values(p.Scrape[0].Static[0].Targets)); !slices.Equal(got, nodes) {
		return []error{fmt.Errorf("prometheus.yml scrapes %v, nodes are %v", got, nodes)}
	}
	if job := `job="` + p.Scrape[0].Job + `"`; !strings.Contains(f["alerts.yml"], job) {
		return []error{fmt.Errorf("alerts.yml does not know %s", job)}
	}
	return nil
}

var (
	selector   = regexp.MustCompile(`\b((?:kvcluster|dynamo)_[a-z0-9_]+)(?:\{([^}]*)\})?`)
	mentioning = regexp.MustCompile(`kvcluster ([a-z]+)|--([a-z-]+)`)
)

func checkAlerts(f files, b *binary) (errs []error) {
	var a struct {
		Groups []struct {
			Name  string
			Rules []struct {
				Alert, Expr, For    string
				Labels, Annotations map[string]string
			}
		}
	}
	if err := fromYAML(f["alerts.yml"], &a); err != nil {
		return []error{err}
	}
	seen := map[string]bool{}
	for _, g := range a.Groups {
		for _, r := range g.Rules {
			fail := func(format string, a ...any) { errs = append(errs, fmt.Errorf(r.Alert+": "+format, a...)) }
			if r.Alert == "" || seen[r.Alert] || r.Expr == "" || r.Annotations["summary"] == "" {
				fail("without a name of its own, expression or summary")
			}
			seen[r.Alert] = true
			if s := r.Labels["severity"]; s != "page" && s != "warn" {
				fail("severity %q", s)
			}
			for _, m := range selector.FindAllStringSubmatch(r.Expr, -1) {
				if !b.hasSample(m[1], m[2]) {
					fail("no node exports %s", m[0])
				}
			}
			for _, text := range r.Annotations {
				for _, m := range mentioning.FindAllStringSubmatch(text, -1) {
					if _, ok := b.commands[m[1]]; m[1] != "" && !ok {
						fail("kvcluster has no command %q", m[1])
					}
					if _, ok := b.commands["serve"].flags[m[2]]; m[2] != "" && !ok {
						fail("kvcluster serve has no flag --%s", m[2])
					}
				}
			}
		}
	}
	if len(seen) < 10 {
		errs = append(errs, fmt.Errorf("only %d alerts", len(seen)))
	}
	return errs
}

// hasSample reports whether a node exports a metric with such labels.
func (b *binary) hasSample(name, labels string) bool {
	return slices.ContainsFunc(b.samples, func(s string) bool {
		metric, _, _ := strings.Cut(s, "{")
		if metric != name {
			return false
		}
		for want := range strings.SplitSeq(labels, ",") {
			if !strings.Contains(s, want) {
				return false
			}
		}
		return true
	})
}
