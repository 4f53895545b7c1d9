package deploy

import (
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestFiles holds every file against the binary, and has whatever tool of the trade is
// installed look at it as well.
func TestFiles(t *testing.T) {
	b := build(t)
	f, err := load()
	if err != nil {
		t.Fatal(err)
	}
	for _, err := range problems(f, b) {
		t.Error(err)
	}
	t.Run("damage is seen", func(t *testing.T) { damage(t, f, b) })
	t.Run("tools", func(t *testing.T) { tools(t, f, b) })
}

// damage makes mistakes that happen: each must be an error that names it.
func damage(t *testing.T, f files, b *binary) {
	for _, d := range []struct{ file, old, new, want string }{
		{"Dockerfile", "USER kvcluster", "USER root", "runs as"},
		{"Dockerfile", "golang:1.26-", "golang:1.19-", "Go 1.19"},
		{"Dockerfile", `"status"`, `"state"`, "no command"},
		{"Dockerfile", "7946/udp", "7949/udp", "7946/udp"},
		{"Dockerfile", `CMD ["serve", "--listen"`, `CMD ["serve", "--http"`, "--http"},
		{"compose.yaml", "--bind-host", "--bind", "--bind"},
		{"compose.yaml", "KVCLUSTER_CLUSTER:", "KVCLUSTER_LABEL:", "KVCLUSTER_LABEL"},
		{"compose.yaml", "n2, --host, 10.77.0.12", "n2, --host, 10.77.0.13", "10.77.0.13"},
		{"compose.yaml", `join, "10.77.0.11:7946", --name, n3`, `join, --name, n3`, "arguments"},
		{"compose.yaml", `join, "10.77.0.11:7946", --name, n3`, `join, "10.77.0.12:7946", --name, n3`, "joins"},
		{"compose.yaml", "http://10.77.0.11:8090", "http://10.77.0.11:8091", "registers at"},
		{"compose.yaml", "127.0.0.1:8091:8090", "8091:8090", "everybody"},
		{"compose.yaml", "read_only: true", "read_only: false", "may write"},
		{"compose.yaml", "volumes: {n1: {}", "volumes: {n4: {}", "no volume"},
		{"compose.yaml", "stop_grace_period", "stop_grace", "stop_grace"},
		{"compose.yaml", "/run/secrets/kvcluster_key", "/run/secrets/key", "secret"},
		{"prometheus.yml", "10.77.0.13:8090", "10.77.0.14:8090", "scrapes"},
		{"prometheus.yml", "job_name: kvcluster", "job_name: kv", `job="kv"`},
		{"prometheus.yml", "scrape_interval", "scrape-interval\n  - x", "yaml"},
		{"alerts.yml", "kvcluster_lease_held", "kvcluster_lease", "kvcluster_lease"},
		{"alerts.yml", `state="unowned"`, `state="orphaned"`, "orphaned"},
		{"alerts.yml", "severity: warn", "severity: low", "severity"},
		{"alerts.yml", "kvcluster remove NAME", "kvcluster forget NAME", "forget"},
		{"alerts.yml", "--weight", "--share", "--share"},
		{"alerts.yml", "        for: 30s\n", "        within: 30s\n", "within"},
		{"kvcluster.service", "RestartPreventExitStatus=2", "RestartPreventExitStatus=3", "RestartPreventExitStatus"},
		{"kvcluster.service", "NoNewPrivileges=yes", "NoNewPrivileges=no", "NoNewPrivileges"},
		{"kvcluster.service", "KVCLUSTER_CPUS", "KVCLUSTER_CORES", "KVCLUSTER_CORES"},
		{"kvcluster.service", "UMask=0027", "UMask 0027", "UMask 0027"},
		{"node.env", "KVCLUSTER_ZONE=", "KVCLUSTER_RACK=", "KVCLUSTER_RACK"},
		{"node.env", "COMMAND=serve", "COMMAND=join", "arguments"},
		{"engines/vllm.json", `"enable_kv_cache_events": true`, `"enable_kv_cache_events": false`, "nothing"},
		{"engines/vllm.json", "6557", "6558", "differ"},
		{"engines/sglang.json", `"hwm"`, `"high_water_mark"`, "differ"},
		{"README.md", "kvcluster leave n3", "kvcluster drain n3", "drain"},
		{"README.md", "--replay tcp://10.0.0.7:6557", "--replay tcp://10.0.0.7:6558", "replay_endpoint"},
		{"README.md", "--replay tcp://10.0.0.8", "--replay-endpoint tcp://10.0.0.8", "--replay-endpoint"},
		{"README.md", "`COMMAND=join FIRST:7946`", "`COMMAND=join`", "arguments"},
		{"README.md", "`alerts.yml`", "alerts", "alerts.yml"},
	} {
		broken := maps.Clone(f)
		if broken[d.file] = strings.ReplaceAll(f[d.file], d.old, d.new); broken[d.file] == f[d.file] {
			t.Errorf("%s has no %q any more", d.file, d.old)
			continue
		}
		var text strings.Builder
		for _, err := range problems(broken, b) {
			text.WriteString(err.Error() + "\n")
		}
		if !strings.Contains(text.String(), d.want) {
			t.Errorf("%s with %q for %q: no error says %q:\n%s", d.file, d.new, d.old, d.want, text.String())
		}
	}
}

// tools has the files judged by what would use them, as far as that is installed.
func tools(t *testing.T, f files, b *binary) {
	run := func(name string, args ...string) {
		t.Helper()
		if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
			t.Errorf("%s %q: %v\n%s", name, args, err, out)
		}
	}
	if _, err := exec.LookPath("promtool"); err == nil {
		run("promtool", "check", "config", "prometheus.yml")
		run("promtool", "check", "rules", "alerts.yml")
	} else {
		t.Log("promtool is not installed")
	}
	if exec.Command("docker", "compose", "version").Run() == nil {
		run("docker", "compose", "-f", "compose.yaml", "config", "--quiet")
	} else {
		t.Log("docker compose is not installed")
	}
	if _, err := exec.LookPath("systemd-analyze"); err != nil {
		t.Log("systemd-analyze is not installed")
		return
	}
	// It wants to see the program and the user.
	unit := filepath.Join(t.TempDir(), "kvcluster.service")
	text := strings.NewReplacer("/usr/local/bin/kvcluster", b.path, "User=kvcluster", "User=root", "Group=kvcluster", "Group=root").Replace(f["kvcluster.service"])
	if err := os.WriteFile(unit, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("systemd-analyze", "verify", "--man=no", unit).CombinedOutput()
	if err != nil || strings.Contains(string(out), "kvcluster.service") {
		t.Errorf("systemd-analyze verify: %v\n%s", err, out)
	}
}
