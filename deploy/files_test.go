package deploy

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// files are the contents of this folder's files by name, and of go.mod.
type files map[string]string

func load() (files, error) {
	f := files{}
	for _, name := range []string{"Dockerfile", "Dockerfile.dockerignore", "compose.yaml", "prometheus.yml", "alerts.yml",
		"kvcluster.service", "node.env", "engines/vllm.json", "engines/sglang.json", "README.md", "../go.mod"} {
		b, err := os.ReadFile(name)
		if err != nil {
			return nil, err
		}
		f[name] = string(b)
	}
	return f, nil
}

// problems holds the files against the binary and each other.
func problems(f files, b *binary) (all []error) {
	for name, check := range map[string]func(files, *binary) []error{
		"Dockerfile": checkImage, "compose.yaml": checkCompose, "alerts.yml": checkAlerts,
		"kvcluster.service": checkUnit, "node.env": checkEnv, "engines": checkEngines, "README.md": checkReadme,
	} {
		for _, err := range check(f, b) {
			all = append(all, fmt.Errorf("%s: %w", name, err))
		}
	}
	slices.SortFunc(all, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	return all
}

// fromYAML refuses keys that the target does not have.
func fromYAML(text string, to any) error {
	d := yaml.NewDecoder(strings.NewReader(text))
	d.KnownFields(true)
	return d.Decode(to)
}

func checkImage(f files, b *binary) (errs []error) {
	text := strings.ReplaceAll(f["Dockerfile"], "\\\n", " ")
	last := map[string]string{}
	for line := range strings.Lines(text) {
		if word, rest, _ := strings.Cut(strings.TrimSpace(line), " "); word != "" && !strings.HasPrefix(word, "#") {
			last[word] = rest
			if version := regexp.MustCompile(`^golang:([0-9.]+)-`).FindStringSubmatch(rest); word == "FROM" && version != nil &&
				!strings.Contains(f["../go.mod"], "\ngo "+version[1]) {
				errs = append(errs, fmt.Errorf("built with Go %s, which is not what go.mod asks for", version[1]))
			}
		}
	}
	if u := last["USER"]; u == "" || u == "root" || u == "0" {
		errs = append(errs, fmt.Errorf("runs as %q", u))
	}
	var entry, args, probe []string
	_, health, _ := strings.Cut(last["HEALTHCHECK"], "CMD ")
	for text, to := range map[string]*[]string{last["ENTRYPOINT"]: &entry, last["CMD"]: &args, health: &probe} {
		if err := json.Unmarshal([]byte(text), to); err != nil {
			errs = append(errs, fmt.Errorf("%q: %w", text, err))
		}
	}
	if !slices.Equal(entry, []string{"kvcluster"}) || len(probe) == 0 || probe[0] != "kvcluster" {
		return append(errs, fmt.Errorf("entry point %q, healthcheck %q", entry, probe))
	}
	for _, line := range [][]string{args, probe[1:]} {
		if err := b.check(line); err != nil {
			errs = append(errs, err)
		}
	}
	for _, port := range []string{"8090", "7946/tcp", "7946/udp", "7947", "7948"} {
		if !slices.Contains(strings.Fields(last["EXPOSE"]), port) {
			errs = append(errs, fmt.Errorf("port %s is not exposed", port))
		}
	}
	return errs
}

func checkEnv(f files, b *binary) (errs []error) {
	set := map[string]string{}
	for line := range strings.Lines(f["node.env"]) {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		name, value, ok := strings.Cut(line, "=")
		if _, twice := set[name]; !ok || twice {
			errs = append(errs, fmt.Errorf("line %q", line))
		}
		set[name] = value
	}
	args := strings.Fields(set["COMMAND"])
	if err := b.check(args); err != nil {
		return append(errs, fmt.Errorf("COMMAND: %w", err))
	}
	for name := range set {
		if name != "COMMAND" && !b.commands[args[0]].variables[name] {
			errs = append(errs, fmt.Errorf("kvcluster %s reads no variable %s", args[0], name))
		}
	}
	return errs
}

func checkUnit(f files, b *binary) (errs []error) {
	section, set := "", map[string]string{}
	for line := range strings.Lines(f["kvcluster.service"]) {
		line = strings.TrimSpace(line)
		switch name, value, ok := strings.Cut(line, "="); {
		case line == "" || line[0] == '#':
		case line[0] == '[':
			section = line
		case !ok || section == "":
			errs = append(errs, fmt.Errorf("line %q", line))
		default:
			if _, twice := set[section+name]; twice {
				errs = append(errs, fmt.Errorf("%s is there twice", name))
			}
			set[section+name] = value
		}
	}
	for name, want := range map[string]string{
		"ExecStart": "/usr/local/bin/kvcluster $COMMAND", "EnvironmentFile": "/etc/kvcluster/node.env", "User": "kvcluster",
		"StateDirectory": "kvcluster", "RestartPreventExitStatus": fmt.Sprint(b.wrongUse), "NoNewPrivileges": "yes",
		"ProtectSystem": "strict", "CapabilityBoundingSet": "",
	} {
		if got, ok := set["[Service]"+name]; !ok || got != want {
			errs = append(errs, fmt.Errorf("%s is %q, want %q", name, got, want))
		}
	}
	for _, name := range []string{"LimitNOFILE", "OOMScoreAdjust", "Restart", "SystemCallFilter", "TimeoutStopSec"} {
		if set["[Service]"+name] == "" {
			errs = append(errs, fmt.Errorf("no %s", name))
		}
	}
	for _, m := range regexp.MustCompile(`KVCLUSTER_[A-Z_]+`).FindAllString(f["kvcluster.service"], -1) {
		if !b.commands["serve"].variables[m] {
			errs = append(errs, fmt.Errorf("kvcluster serve reads no variable %s", m))
		}
	}
	return errs
}

func checkEngines(f files, _ *binary) (errs []error) {
	var vllm, sglang map[string]any
	for name, to := range map[string]*map[string]any{"engines/vllm.json": &vllm, "engines/sglang.json": &sglang} {
		if err := json.Unmarshal([]byte(f[name]), to); err != nil {
			return []error{fmt.Errorf("%s: %w", name, err)}
		}
	}
	// vLLM has one switch more; else the two take the same names.
	if vllm["enable_kv_cache_events"] != true {
		errs = append(errs, fmt.Errorf("vLLM publishes nothing: %v", vllm))
	}
	delete(vllm, "enable_kv_cache_events")
	if fmt.Sprint(vllm) != fmt.Sprint(sglang) {
		errs = append(errs, fmt.Errorf("vLLM and SGLang differ: %v, %v", vllm, sglang))
	}
	for key, flag := range map[string]string{"endpoint": "tcp://", "replay_endpoint": "--replay tcp://"} {
		at, _ := vllm[key].(string)
		port, ok := strings.CutPrefix(at, "tcp://*:")
		if !ok || !regexp.MustCompile(regexp.QuoteMeta(flag)+`10\.0\.0\.7:`+port+`\b`).MatchString(f["README.md"]) {
			errs = append(errs, fmt.Errorf("%s is %q, and README.md registers another port", key, at))
		}
	}
	for _, key := range []string{"publisher", "buffer_steps", "hwm", "max_queue_size", "topic"} {
		if _, ok := vllm[key]; !ok {
			errs = append(errs, fmt.Errorf("no %s", key))
		}
	}
	return errs
}

// checkReadme checks every command of the text, and that it names every file.
func checkReadme(f files, b *binary) (errs []error) {
	text := f["README.md"]
	for name := range f {
		if base := strings.TrimSuffix(name, ".dockerignore"); !strings.HasPrefix(name, "..") && name != "README.md" && !strings.Contains(text, "`"+base+"`") {
			errs = append(errs, fmt.Errorf("%s is not mentioned", name))
		}
	}
	lines := 0
	for _, m := range regexp.MustCompile("(?m)^kvcluster (.*)$|`kvcluster ([^`]*)`").FindAllStringSubmatch(text, -1) {
		lines++
		if err := b.check(shellWords(m[1] + m[2])); err != nil {
			errs = append(errs, err)
		}
	}
	if lines < 8 {
		errs = append(errs, fmt.Errorf("only %d commands found", lines))
	}
	return append(errs, checkNames(text, b)...)
}

// checkNames checks variables and flags that are mentioned in passing.
func checkNames(text string, b *binary) (errs []error) {
	for _, m := range regexp.MustCompile(`KVCLUSTER_[A-Z_]+`).FindAllString(text, -1) {
		if !b.commands["serve"].variables[m] {
			errs = append(errs, fmt.Errorf("kvcluster serve reads no variable %s", m))
		}
	}
	for _, m := range regexp.MustCompile(`COMMAND=([^`+"`"+`\n]*)`).FindAllStringSubmatch(text, -1) {
		if err := b.check(strings.Fields(m[1])); err != nil {
			errs = append(errs, err)
		}
	}
	return errs
}

// shellWords splits a line as a shell does, up to a comment; quotes keep words together.
func shellWords(line string) (words []string) {
	for _, m := range regexp.MustCompile(`'[^']*'|"[^"]*"|\S+`).FindAllString(line, -1) {
		if m[0] == '#' {
			break
		}
		words = append(words, strings.Trim(m, `'"`))
	}
	return words
}

func hostOf(address string) string {
	host, _, err := net.SplitHostPort(strings.TrimPrefix(address, "http://"))
	if err != nil {
		return address
	}
	return host
}
