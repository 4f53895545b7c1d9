package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptrace"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kvcluster/kvcluster/cluster/gossip"
	"github.com/kvcluster/kvcluster/cluster/member"
)

// runs runs the command until it ends by itself and returns its exit code and what it
// said.
func (c *processes) runs(args ...string) (code int, said string) {
	c.tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 45*time.Second)
	defer cancel()
	var out bytes.Buffer
	cmd := exec.CommandContext(ctx, c.bin, args...)
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	err := cmd.Run()
	var exit *exec.ExitError
	switch {
	case ctx.Err() != nil:
		return -1, "did not end in 45 s\n" + out.String()
	case errors.As(err, &exit):
		return exit.ExitCode(), out.String()
	case err != nil:
		c.tb.Fatal(err)
	}
	return 0, out.String()
}

// lastLine is what a command ends with: the error.
func lastLine(said string) string {
	lines := strings.Split(strings.TrimSpace(said), "\n")
	return lines[len(lines)-1]
}

// refused runs a command that must fail with a code, and whose last line must have all
// that is wanted.
func (c *processes) refused(what string, code int, wants []string, args ...string) {
	c.tb.Helper()
	got, said := c.runs(args...)
	last := lastLine(said)
	if got != code {
		c.tb.Errorf("%s: exit code %d, want %d\n%s", what, got, code, said)
	}
	for _, want := range wants {
		if !strings.Contains(last, want) {
			c.tb.Errorf("%s: says %q, want %q in it", what, last, want)
		}
	}
	if strings.Contains(said, "panic:") || strings.Contains(said, "goroutine ") {
		c.tb.Errorf("%s: a panic\n%s", what, said)
	}
	c.tb.Logf("%s: %s", what, last)
}

// answersAll waits until every node answers some prompts completely, and compares them.
func (x *clusterTraffic) answersAll(when string) {
	x.t.Helper()
	n := len(x.fleet.Plan().Trace().Requests)
	for _, url := range x.c.urls() {
		for i := 0; i < n; i += 1 + n/12 {
			await(x.t, 30*time.Second, func() string {
				diff, marked := x.compareOne(url, i)
				if diff != "" && marked == "" {
					x.t.Fatalf("%s: %s, request %d, complete and current: %s", when, url, i, diff)
				}
				if marked != "" {
					return when + ": " + marked
				}
				return ""
			})
		}
	}
}

// onlyMembers fails unless these are the members and nobody else is even seen.
func (c *processes) onlyMembers(when string, names ...string) {
	c.tb.Helper()
	ms := c.members()
	if got := sortedNames(ms); fmt.Sprint(got) != fmt.Sprint(names) {
		c.tb.Errorf("%s: members are %v, want %v: %+v", when, got, names, ms)
	}
}

// outsider is a node in this process that speaks to a cluster's membership.
func outsider(t *testing.T, edit func(*gossip.Config)) *gossip.Gossip {
	t.Helper()
	cfg := gossip.Config{
		Meta: gossip.Meta{
			Name: "outsider", ServerID: strings.Repeat("0a", 16), Boot: 7, Raft: "127.0.0.1:9", Link: "tcp://127.0.0.1:9", Weight: 1,
			Version: "v9.9.9", Protocol: member.Protocol, ClusterID: "OUTSIDERS",
		},
		Bind: "127.0.0.1:0", Advertise: "127.0.0.1", Label: "kvcluster",
	}
	edit(&cfg)
	g, err := gossip.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := g.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = g.Close() })
	return g
}

// closedPort is an address where nobody listens.
func closedPort(t *testing.T) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// What an operator can do wrong costs nobody anything and is answered in words: three
// nodes hold what a fleet has told them, and after each attempt they are the members that
// they were, nobody else is, and every answer is complete and exact.
func TestClusterBadDays(t *testing.T) {
	c := startCluster(t, 3)
	x := startTraffic(t, c, requests(60), 60)
	x.settle()
	members := []string{"n1", "n2", "n3"}
	await(t, 10*time.Second, func() string { // the port that the system chose, of the founder too
		for name, m := range c.members() {
			if "http://"+m.HTTP != c.nodes[name].url {
				return fmt.Sprintf("%s serves at %s, members are told %s", name, c.nodes[name].url, m.HTTP)
			}
		}
		return ""
	})

	in := func(name string) string { return filepath.Join(c.dir, name) }
	write := func(name, text string) string {
		if err := os.WriteFile(in(name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return in(name)
	}
	join := func(seed, name string, flags ...string) []string {
		return append([]string{"join", seed, "--name", name, "--data", in(name), "--listen", "127.0.0.1:0", "--lanes", "1", "--io-threads", "1"}, flags...)
	}
	// A folder of another cluster, which has ended, and a copy of a member's.
	other := &processes{tb: t, dir: t.TempDir(), bin: c.bin, nodes: map[string]*nodeProcess{}}
	other.start("m1")
	foreign := filepath.Join(other.dir, "m1")
	other.endAll()
	if err := os.CopyFS(in("copy"), os.DirFS(in("n2"))); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(in("copy/addresses.json")); err != nil {
		t.Fatal(err)
	}
	serves := strings.TrimPrefix(c.nodes["n1"].url, "http://")
	nobody := closedPort(t)
	later := outsider(t, func(g *gossip.Config) { g.Meta.Protocol++ }).Address()
	ahead := outsider(t, func(g *gossip.Config) { g.Clock = func() time.Time { return time.Now().Add(time.Hour) } }).Address()

	for _, bad := range []struct {
		what  string
		code  int
		wants []string
		args  []string
	}{
		{"another cluster's name", 1, []string{"label", `"other"`}, join(c.seed, "s1", "--cluster", "other")},
		{"a key that nobody has", 1, []string{"key", "Use the same key"}, join(c.seed, "s2", "--key-file", write("key", strings.Repeat("ab", 32)))},
		{"the name of a member", 1, []string{`"n2"`, "another name"}, join(c.seed, "s3", "--name", "n2")},
		{"an address that resolves to nothing", 1, []string{"no-such-host.invalid"}, join("no-such-host.invalid:7946", "s4")},
		{"an address where nobody is", 1, []string{nobody, "Nobody listens"}, join(nobody, "s5")},
		{"the HTTP port instead of that of the membership", 1, []string{"no gossip port"}, join(serves, "s6")},
		{"nodes of another version", 1, []string{fmt.Sprint("protocol version ", member.Protocol+1), "v9.9.9", "same release"}, join(later, "s7")},
		{"nodes whose clock is an hour ahead", 1, []string{"clock", "behind", "NTP"}, join(ahead, "s8")},
		{"the HTTP port of another node", 1, []string{serves, "port in use"}, join(c.seed, "s9", "--listen", serves)},
		{"the membership port of another node", 1, []string{c.seed, "--gossip"}, join(c.seed, "s10", "--gossip", c.seed)},
		{"an access log that cannot be written", 1, []string{"access log"}, join(c.seed, "s11", "--access-log", in("no/such"))},
		{"a core that is not there", 1, []string{"CPU 9999"}, join(c.seed, "s12", "--cpus", "9999")},
		{"the folder of a member that runs", 1, []string{"in use by another process"}, join(c.seed, "n2")},
		{"the folder of another member", 1, []string{`the node "n2"`, `"s13"`}, join(c.seed, "s13", "--data", in("copy"))},
		{"a copy of a member's folder", 1, []string{"identity of this node", "copied"}, join(c.seed, "n2", "--data", in("copy"))},
		{"the folder of another cluster", 1, []string{"belongs to the cluster", "empty data folder"}, join(c.seed, "m1", "--data", foreign)},
		{"a file instead of a folder", 1, []string{"is no folder", "Name another"}, join(c.seed, "s14", "--data", write("file", "x"))},
		{"a folder below a file", 1, []string{"is no folder", "Name another"}, join(c.seed, "s15", "--data", write("file", "x")+"/data")},
		{"the last address is damaged", 1, []string{"addresses.json", "delete"}, func() []string {
			if err := os.Mkdir(in("s16"), 0o700); err != nil {
				t.Fatal(err)
			}
			write("s16/addresses.json", "{")
			return join(c.seed, "s16")
		}()},
	} {
		c.refused(bad.what, bad.code, bad.wants, bad.args...)
		c.onlyMembers(bad.what, members...)
		x.answersAll(bad.what)
	}

	// The same, from the side of those who come.
	for _, come := range []struct {
		what string
		want error
		edit func(*gossip.Config)
	}{
		{"a node of another version comes", gossip.ErrOtherProtocol, func(g *gossip.Config) { g.Meta.Protocol++; g.Meta.ClusterID = "" }},
		{"a node whose clock is an hour behind comes", gossip.ErrClock, func(g *gossip.Config) {
			g.Meta.ClusterID, g.Clock = "", func() time.Time { return time.Now().Add(-time.Hour) }
		}},
	} {
		g := outsider(t, come.edit)
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		err := g.Join(ctx, []string{c.seed})
		cancel()
		if !errors.Is(err, come.want) {
			t.Errorf("%s: %v", come.what, err)
		}
		c.onlyMembers(come.what, members...)
		x.answersAll(come.what)
	}

	// What may not be asked of members.
	url := c.nodes["n1"].url
	c.refused("removal of a member that is alive", 1, []string{"n2", "alive", "--force"}, "remove", "n2", "--server", url)
	c.refused("removal of oneself", 1, []string{"n1", "alive"}, "remove", "n1", "--server", url)
	c.refused("removal of nobody", 3, []string{"no such member"}, "remove", "n7", "--server", url)
	c.refused("leave of nobody", 3, []string{"no such member"}, "leave", "n7", "--server", url)
	c.refused("members of a port that is none of HTTP", 4, []string{"HTTP address"}, "members", "--server", c.seed)
	c.onlyMembers("at the end", members...)
	x.answersAll("at the end")
	c.awaitBalanced(3)
}

// A node whose disk has damaged what it keeps does not start, says which file and what to
// do, and the others answer all the while. After what it says has been done, it is back
// and has its share.
func TestClusterDamagedFolder(t *testing.T) {
	c := startCluster(t, 3)
	x := startTraffic(t, c, requests(60), 60)
	x.settle()
	victim := c.holder(func(m memberView) bool { return m.Role != "leader" })
	folder := filepath.Join(c.dir, victim)
	c.kill(victim)
	whole := filepath.Join(c.dir, "whole")
	if err := os.CopyFS(whole, os.DirFS(folder)); err != nil {
		t.Fatal(err)
	}
	args := []string{"serve", "--name", victim, "--data", folder, "--listen", "127.0.0.1:0", "--lanes", "1", "--io-threads", "1"}
	damage := func(file string, change func([]byte) []byte) {
		t.Helper()
		if err := os.RemoveAll(folder); err != nil {
			t.Fatal(err)
		}
		if err := os.CopyFS(folder, os.DirFS(whole)); err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(folder, file)
		raw, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		switch changed := change(bytes.Clone(raw)); {
		case changed == nil:
			err = os.Remove(path)
		case bytes.Equal(changed, raw):
			t.Fatalf("%s is what it was", path)
		default:
			err = os.WriteFile(path, changed, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	flipIn := func(what string) func([]byte) []byte {
		return func(b []byte) []byte {
			at := bytes.Index(b, []byte(what))
			if at < 0 {
				t.Fatalf("there is no %q to damage", what)
			}
			b[at+len(what)/2] ^= 0x10
			return b
		}
	}
	half := func(b []byte) []byte { return b[:len(b)/2] }
	gone := func([]byte) []byte { return nil }
	empty := func([]byte) []byte { return []byte{} }
	for _, bad := range []struct {
		what, file string
		change     func([]byte) []byte
	}{
		{"half of the log", "raft.db", half},
		{"no log", "raft.db", gone},
		{"an empty log", "raft.db", empty},
		{"a flipped bit in an entry of the log", "raft.db", flipIn(victim)},
		{"a flipped bit in the name of the term", "raft.db", func(b []byte) []byte { return bytes.ReplaceAll(b, []byte("CurrentTerm"), []byte("CurrentTerM")) }},
		{"a flipped bit in the term", "raft.db", func(b []byte) []byte {
			return bytes.ReplaceAll(b, []byte("CurrentTerm\x00"), []byte("CurrentTerm\x01"))
		}},
		{"a flipped bit in the identity", "identity.json", flipIn("server_id")},
		{"half of the identity", "identity.json", half},
		{"no identity", "identity.json", gone},
	} {
		damage(bad.file, bad.change)
		wants := []string{filepath.Join(folder, bad.file), "Move the folder", "kvcluster remove", "join"}
		c.refused(bad.what, 1, wants, args...)
		x.answersAll(bad.what)
	}

	// What the message says.
	if err := os.Rename(folder, folder+".damaged"); err != nil {
		t.Fatal(err)
	}
	await(t, 20*time.Second, func() string {
		if m := c.members()[victim]; m.Alive {
			return fmt.Sprintf("it is dead, and said to be alive: %+v", m)
		}
		return ""
	})
	if code, said := c.runs("remove", victim, "--server", c.anyURL()); code != 0 {
		t.Fatalf("remove: exit code %d: %s", code, said)
	}
	c.start(victim)
	c.awaitBalanced(3)
	if m := c.members()[victim]; m.Ready == 0 {
		t.Errorf("it has no share: %+v", m)
	}
	x.answersAll("afterwards")
	x.settle()
}

// Two of three nodes are dead, so the log decides nothing: whoever asks for a decision is
// told what is missing, the last node ends when it is told to although somebody waits, and
// one that starts alone says what it waits for and ends too. Then all come back.
func TestClusterWithoutQuorum(t *testing.T) {
	c := startCluster(t, 3)
	x := startTraffic(t, c, requests(60), 60)
	x.settle()
	c.kill("n2")
	c.kill("n3")
	n1 := c.nodes["n1"]
	lacks := []string{"nothing can be decided", "1 of 3 voters", "2 are needed", "n2, n3"}
	c.refused("a leave", 1, lacks, "leave", "n2", "--server", n1.url)
	c.refused("a registration", 1, lacks, "register", "77", "tcp://127.0.0.1:9", "--model", "m", "--block-size", "16", "--server", n1.url)
	for _, look := range []string{"members", "shards", "status"} {
		if code, said := c.runs(look, "--server", n1.url); code != 0 {
			t.Errorf("%s: exit code %d: %s", look, code, said)
		}
	}

	sent, told := make(chan struct{}), make(chan string, 1)
	go func() {
		trace := httptrace.WithClientTrace(context.Background(), &httptrace.ClientTrace{WroteRequest: func(httptrace.WroteRequestInfo) { close(sent) }})
		req, err := http.NewRequestWithContext(trace, "POST", n1.url+"/members/n3/leave", nil)
		if err == nil {
			var resp *http.Response
			if resp, err = http.DefaultTransport.RoundTrip(req); err == nil {
				resp.Body.Close()
				err = errors.New(resp.Status)
			}
		}
		told <- err.Error()
	}()
	<-sent
	c.end("n1", 15*time.Second)
	t.Logf("who waited was told: %s", <-told)

	alone, err := c.begin("n1")
	if err != nil {
		t.Fatal(err)
	}
	await(t, 20*time.Second, func() string {
		if raw, _ := os.ReadFile(alone.log); bytes.Contains(raw, []byte("waiting to be taken in by the leader")) {
			return ""
		}
		return "it does not say that it waits: " + lastLines(alone.log, 3)
	})
	c.refused("status of a node that is starting", 4, []string{"no node answers"}, "status", "--server", n1.url)
	c.nodes["n1"] = alone
	c.end("n1", 15*time.Second)

	c.startAll(nil, "n1", "n2", "n3")
	x.settle()
}

// end ends a node in order, which must not take longer than limit.
func (c *processes) end(name string, limit time.Duration) {
	c.tb.Helper()
	p := c.nodes[name]
	c.signal(name, syscall.SIGTERM)
	select {
	case err := <-p.ended:
		if err != nil {
			c.tb.Errorf("%s ended with %v\n%s", name, err, lastLines(p.log, 5))
		}
	case <-time.After(limit):
		_ = p.cmd.Process.Kill()
		<-p.ended
		c.tb.Errorf("%s did not end in %v\n%s", name, limit, lastLines(p.log, 10))
	}
	delete(c.nodes, name)
}
