package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/alecthomas/kong"
)

// kvcluster runs the command line and returns what it did.
func kvcluster(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	code = run(t.Context(), args, &out, &errs)
	return code, out.String(), errs.String()
}

// cleanEnvironment removes what would change the meaning of a command line.
func cleanEnvironment(t *testing.T) {
	t.Helper()
	for _, kv := range os.Environ() {
		if name, _, _ := strings.Cut(kv, "="); strings.HasPrefix(name, "KVCLUSTER_") || strings.HasPrefix(name, "DYN_") {
			t.Setenv(name, "") // so that it is put back
			os.Unsetenv(name)
		}
	}
}

// leaves returns every command that can be run, as words.
func leaves(t *testing.T) (paths [][]string) {
	t.Helper()
	k, err := kong.New(&commands{}, kong.Name("kvcluster"), kong.DefaultEnvars("KVCLUSTER"))
	if err != nil {
		t.Fatal(err)
	}
	var walk func(n *kong.Node, at []string)
	walk = func(n *kong.Node, at []string) {
		inner := false
		for _, c := range n.Children {
			if c.Type == kong.CommandNode && !c.Hidden {
				walk(c, append(at[:len(at):len(at)], c.Name))
				inner = true
			}
		}
		if !inner {
			paths = append(paths, at)
		}
	}
	walk(k.Model.Node, nil)
	if len(paths) < 11 {
		t.Fatalf("only %d commands: %v", len(paths), paths)
	}
	return paths
}

func TestHelpOfEveryCommandHasExamplesThatParse(t *testing.T) {
	cleanEnvironment(t)
	t.Chdir(t.TempDir())
	for _, f := range []string{"conversation_trace.jsonl", "prompt.json", "prompt.txt", "node.yaml", "worker7.rec"} {
		if err := os.WriteFile(f, []byte("{}"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, path := range leaves(t) {
		t.Run(strings.Join(path, "_"), func(t *testing.T) {
			code, out, errs := kvcluster(t, append(path, "--help")...)
			if code != exitOK || errs != "" || !strings.HasPrefix(out, "Usage: kvcluster "+strings.Join(path, " ")) {
				t.Fatalf("exit code %d, error %q, output %q", code, errs, out)
			}
			_, examples, ok := strings.Cut(out, "Examples:\n")
			if !ok {
				t.Fatalf("no examples in:\n%s", out)
			}
			examples, _, _ = strings.Cut(examples, "\nFlags:")
			n := 0
			for line := range strings.Lines(examples) {
				words := exampleWords(line)
				if words == nil {
					continue
				}
				n++
				k, err := kong.New(&commands{}, kong.Name("kvcluster"), kong.DefaultEnvars("KVCLUSTER"))
				if err != nil {
					t.Fatal(err)
				}
				if _, err := k.Parse(words); err != nil {
					t.Errorf("example %q: %v", strings.TrimSpace(line), err)
				}
			}
			if n == 0 {
				t.Errorf("no example could be read in:\n%s", examples)
			}
		})
	}
}

// exampleWords returns the arguments of the kvcluster command in a line of help.
func exampleWords(line string) []string {
	_, rest, ok := strings.Cut(line, "kvcluster ")
	if !ok {
		return nil
	}
	for _, end := range []string{" | ", " >> ", " > ", " && "} {
		rest, _, _ = strings.Cut(rest, end)
	}
	var words []string
	for _, w := range strings.Fields(rest) {
		words = append(words, strings.Trim(w, "'"))
	}
	return words
}

func TestExitCodes(t *testing.T) {
	cleanEnvironment(t)
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return path
	}
	nobody := "http://127.0.0.1:1"
	for _, c := range []struct {
		name string
		args []string
		code int
		says string // in what it writes
	}{
		{"nothing", nil, exitOK, "Usage: kvcluster"},
		{"version", []string{"version"}, exitOK, "kvcluster "},
		{"an unknown command", []string{"frobnicate"}, exitUsage, "frobnicate"},
		{"an unknown flag", []string{"serve", "--lisen", ":1"}, exitUsage, "--lisen"},
		{"a flag without its value", []string{"serve", "--listen"}, exitUsage, "--listen"},
		{"a number that is none", []string{"serve", "--loops", "many"}, exitUsage, "many"},
		{"a number below zero", []string{"serve", "--loops=-1"}, exitUsage, "Loops is -1"},
		{"an address that is none", []string{"serve", "--listen", "nonsense"}, exitUsage, `address "nonsense"`},
		{"a port that is none", []string{"serve", "--listen", "127.0.0.1:99999"}, exitUsage, "99999"},
		{"a memory limit that is none", []string{"serve", "--memory-limit", "12Q"}, exitUsage, `"12Q" is not a size like 512M or 24G`},
		{"a memory limit below zero", []string{"serve", "--memory-limit=-5"}, exitUsage, `"-5" is not a size`},
		{"a memory limit beyond 64 bits", []string{"serve", "--memory-limit", "99999999999T"}, exitUsage, "is not a size"},
		{"a memory limit of a fraction", []string{"serve", "--memory-limit", "1.5G"}, exitUsage, "is not a size"},
		{"pprof for everybody", []string{"serve", "--pprof", "0.0.0.0:9999"}, exitUsage, "loopback"},
		{"no partitions", []string{"serve", "--partitions", "0"}, exitUsage, "partitions is 0"},
		{"too many lanes", []string{"serve", "--lanes", "1000"}, exitUsage, "lanes is 1000"},
		{"an unknown index", []string{"serve", "--index", "btree"}, exitUsage, "btree"},
		{"an unknown policy", []string{"serve", "--on-loss", "panic"}, exitUsage, "panic"},
		{"workers without a block size", []string{"serve", "--workers", "1=tcp://h:1"}, exitUsage, "--block-size"},
		{"a worker without an address", []string{"serve", "--workers", "1", "--block-size", "16"}, exitUsage, "id[:rank]=address"},
		{"a worker with a rank that is none", []string{"serve", "--workers", "1:x=tcp://h:1", "--block-size", "16"}, exitUsage, `rank "x"`},
		{"a worker with an address that is none", []string{"serve", "--workers", "1=http://h:1", "--block-size", "16"}, exitUsage, "unsupported scheme `http`"},
		{"a worker without a model", []string{"serve", "--workers", "1=tcp://h:1", "--block-size", "16", "--model-name", ""}, exitUsage, "a model name"},
		{"a worker that is given twice", []string{"serve", "--workers", "1=tcp://h:1,1=tcp://h:2", "--block-size", "16"}, exitUsage, "given twice"},
		{"cores that are none", []string{"serve", "--cpus", "5-2"}, exitUsage, "5-2"},
		{"a seed without a host", []string{"join", ""}, exitUsage, "no address of a member"},
		{"a seed with a port that is none", []string{"join", "h:70000"}, exitUsage, "70000"},
		{"a seed with a port that is a word", []string{"join", "h:gossip"}, exitUsage, "gossip"},
		{"a link with a port that is none", []string{"join", "h", "--link", "127.0.0.1:70000"}, exitUsage, "--link"},
		{"a name with a blank", []string{"join", "h", "--name", "a b"}, exitUsage, "blank"},
		{"a cluster's name that is too long", []string{"join", "h", "--cluster", strings.Repeat("c", 65)}, exitUsage, "65 bytes"},
		{"a zone that is too long", []string{"join", "h", "--zone", strings.Repeat("z", 101)}, exitUsage, "101 bytes"},
		{"a key that is none", []string{"join", "h", "--key-file", file("key", "short")}, exitUsage, "5 bytes"},
		{"a key file that is a folder", []string{"join", "h", "--key-file", dir}, exitUsage, "directory"},
		{"a seed that resolves to nothing", []string{"join", "no-such-host.invalid", "--data", filepath.Join(dir, "lost"), "--listen", "127.0.0.1:0"}, exitFailed, "no-such-host.invalid"},
		{"members of nobody", []string{"members", "--server", nobody}, exitNoServer, nobody},
		{"shards of nobody", []string{"shards", "--server", nobody}, exitNoServer, nobody},
		{"a leave at nobody", []string{"leave", "n1", "--server", nobody}, exitNoServer, nobody},
		{"a removal at nobody", []string{"remove", "n1", "--server", nobody}, exitNoServer, nobody},
		{"a snapshot of nobody", []string{"snapshot", "--server", nobody}, exitNoServer, nobody},
		{"an access log that cannot be written", []string{"serve", "--listen", "127.0.0.1:0", "--access-log", filepath.Join(dir, "no", "such.log")}, exitFailed, "access log"},
		{"a configuration file that is not there", []string{"--config", filepath.Join(dir, "none.yaml"), "status"}, exitUsage, "does not exist"},
		{"a configuration file with an unknown key", []string{"-c", file("unknown.yaml", "lisen: x\nloops: 1\n"), "serve"}, exitUsage, "lisen"},
		{"a configuration file with a wrong type", []string{"-c", file("type.yaml", "loops: many\n"), "serve"}, exitUsage, "many"},
		{"a configuration file with a map", []string{"-c", file("map.yaml", "loops: {a: 1}\n"), "serve"}, exitUsage, "must be a plain value"},
		{"a configuration file that is a list", []string{"-c", file("list.yaml", "- a\n"), "serve"}, exitUsage, "not a YAML map"},
		{"a configuration file that is no text", []string{"-c", file("bytes.yaml", "loops: \"\xff\xfe\"\n"), "serve"}, exitUsage, "not a YAML map"},
		{"a configuration file with a key twice", []string{"-c", file("twice.yaml", "loops: 1\nloops: 2\n"), "serve"}, exitUsage, "already defined"},
		{"a server that is no URL", []string{"status", "--server", "http://"}, exitUsage, "not a URL"},
		{"a node that does not answer", []string{"status", "--server", nobody}, exitNoServer, "no node answers at " + nobody},
		{"workers of nobody", []string{"workers", "--server", nobody}, exitNoServer, nobody},
		{"a query of nobody", []string{"query", "-s", nobody, "-m", "m", "-t", "1"}, exitNoServer, nobody},
		{"a registration at nobody", []string{"register", "-s", nobody, "7", "tcp://h:1", "-m", "m", "-b", "16"}, exitNoServer, nobody},
		{"top of nobody", []string{"top", "-s", nobody, "--count", "1"}, exitNoServer, nobody},
		{"a query without a prompt", []string{"query", "-s", nobody, "-m", "m"}, exitUsage, "--tokens or --file"},
		{"a query with two prompts", []string{"query", "-s", nobody, "-m", "m", "-t", "1", "-f", "x"}, exitUsage, "--tokens or --file"},
		{"a query with words", []string{"query", "-s", nobody, "-m", "m", "-t", "1,two"}, exitUsage, `"two"`},
		{"a query without a model", []string{"query", "-s", nobody, "-t", "1"}, exitUsage, "--model"},
		{"a query from a file that is not there", []string{"query", "-s", nobody, "-m", "m", "-f", filepath.Join(dir, "none")}, exitUsage, "no such file"},
		{"an explanation of nobody", []string{"query", "-s", nobody, "-m", "m", "-t", "1", "--explain"}, exitUsage, "--instance"},
		{"a rank without its group", []string{"unregister", "-s", nobody, "7", "-m", "m", "-r", "1"}, exitUsage, "--group"},
		{"a look that never comes", []string{"top", "-s", nobody, "--period", "0s"}, exitUsage, "--period"},
		{"mock workers of an unknown format", []string{"mock", "--format", "vllm-yaml"}, exitUsage, "vllm-yaml"},
		{"mock workers with an unknown fault", []string{"mock", "--fault", "explode@3"}, exitUsage, "explode"},
		{"no mock workers", []string{"mock", "--workers=-1"}, exitUsage, "workers"},
		{"a recording that is not there", []string{"replay", filepath.Join(dir, "none.rec")}, exitUsage, "no such file"},
		{"a recording that is none", []string{"replay", "--settle", "1ms", file("text.rec", "hello\n")}, exitFailed, "text.rec"},
	} {
		t.Run(c.name, func(t *testing.T) {
			code, out, errs := kvcluster(t, c.args...)
			if code != c.code || !strings.Contains(out+errs, c.says) {
				t.Errorf("kvcluster %s: exit code %d, want %d with %q\nstdout: %s\nstderr: %s", strings.Join(c.args, " "), code, c.code, c.says, out, errs)
			}
			if c.code != exitOK && out != "" {
				t.Errorf("an error goes to stderr, stdout has %q", out)
			}
		})
	}
}

func TestWrongEnvironment(t *testing.T) {
	for name, value := range map[string]string{
		"KVCLUSTER_LOOPS": "abc", "KVCLUSTER_ON_LOSS": "perhaps", "KVCLUSTER_MEMORY_LIMIT": "much", "KVCLUSTER_PROBE_AFTER": "5 parsecs",
		"KVCLUSTER_STREAM_METRICS": "maybe", "DYN_ROUTER_MIN_INITIAL_WORKERS": "few", "DYN_KV_INDEXER_TEST_ENDPOINTS": "perhaps",
	} {
		t.Run(name, func(t *testing.T) {
			cleanEnvironment(t)
			t.Setenv(name, value)
			code, _, errs := kvcluster(t, "serve", "--listen", "127.0.0.1:0")
			if code != exitUsage || !strings.Contains(errs, value) {
				t.Errorf("%s=%s: exit code %d, want %d, and the value in %q", name, value, code, exitUsage, errs)
			}
		})
	}
}

// A variable or a flag without a value says nothing: no folder is used that nobody named.
func TestEmptyValues(t *testing.T) {
	cleanEnvironment(t)
	here := t.TempDir()
	t.Chdir(here)
	for _, name := range []string{"KVCLUSTER_DATA", "KVCLUSTER_KEY_FILE", "KVCLUSTER_CONFIG", "KVCLUSTER_GRACE", "KVCLUSTER_LANES", "KVCLUSTER_ACCESS_LOG"} {
		t.Setenv(name, "")
	}
	serve(t)
	serve(t, "--data", "", "--key-file", "", "--access-log", "")
	entries, err := os.ReadDir(here)
	if err != nil || len(entries) > 0 {
		t.Errorf("written where it was started: %v, %v", entries, err)
	}
}

// A flag wins over the environment, and that over the file.
func TestPrecedence(t *testing.T) {
	cleanEnvironment(t)
	path := filepath.Join(t.TempDir(), "c.yaml")
	if err := os.WriteFile(path, []byte("server: http://127.0.0.1:2\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	asked := func(args ...string) string {
		t.Helper()
		code, _, errs := kvcluster(t, args...)
		if code != exitNoServer {
			t.Fatalf("exit code %d: %s", code, errs)
		}
		_, at, _ := strings.Cut(errs, "no node answers at ")
		at, _, _ = strings.Cut(at, ": ")
		if u, _, ok := strings.Cut(at, ":"); !ok || u == "" {
			t.Fatalf("no address in %q", errs)
		}
		return at
	}
	check := func(what, got, want string) {
		t.Helper()
		if got != want {
			t.Errorf("%s: asked %s, want %s", what, got, want)
		}
	}
	check("file", asked("-c", path, "status"), "http://127.0.0.1:2")
	check("file, behind the command", asked("status", "--config="+path), "http://127.0.0.1:2")
	check("flag over file", asked("-c", path, "status", "--server", "http://127.0.0.1:4"), "http://127.0.0.1:4")
	t.Setenv("KVCLUSTER_SERVER", "http://127.0.0.1:3")
	check("environment", asked("status"), "http://127.0.0.1:3")
	check("environment over file", asked("-c", path, "status"), "http://127.0.0.1:3")
	check("flag over environment and file", asked("-c", path, "status", "-s", "127.0.0.1:4"), "http://127.0.0.1:4")
	os.Unsetenv("KVCLUSTER_SERVER")
	t.Setenv("KVCLUSTER_CONFIG", path)
	check("file named by the environment", asked("status"), "http://127.0.0.1:2")
}

func TestVersionAsJSON(t *testing.T) {
	cleanEnvironment(t)
	code, out, errs := kvcluster(t, "version", "--json")
	var v struct{ Version, Go, Target string }
	if err := json.Unmarshal([]byte(out), &v); code != exitOK || err != nil || v.Version == "" || v.Go == "" || v.Target == "" {
		t.Errorf("exit code %d, %v in %q (%s)", code, err, out, errs)
	}
}

// An interrupt is a clean end.
func TestInterruptedCommandEndsCleanly(t *testing.T) {
	cleanEnvironment(t)
	ctx, cancel := context.WithCancel(t.Context())
	address := filepath.Join(t.TempDir(), "address")
	var out, errs bytes.Buffer
	ended := make(chan int, 1)
	go func() {
		ended <- run(ctx, []string{"serve", "--listen", "127.0.0.1:0", "--address-file", address}, &out, &errs)
	}()
	awaitFile(t, address)
	cancel()
	if code := <-ended; code != exitOK || strings.Contains(errs.String(), "level=ERROR") {
		t.Errorf("exit code %d after an interrupt: %s", code, &errs)
	}
	if !strings.Contains(fmt.Sprint(&errs), "stopped") {
		t.Errorf("it does not say that it has stopped: %s", &errs)
	}
}
