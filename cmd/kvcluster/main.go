// Command kvcluster runs and operates a sharded index of LLM KV caches.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"reflect"
	"regexp"
	"runtime/debug"
	"strings"
	"syscall"

	"github.com/alecthomas/kong"
)

// Exit codes, so that scripts can tell what happened.
const (
	exitOK       = 0
	exitFailed   = 1 // the command ran and failed
	exitUsage    = 2 // the command line, environment or file is wrong
	exitNotFound = 3 // what was asked for is not there (worker, model)
	exitNoServer = 4 // no node answers at the given address
)

// commands is the whole command line.
type commands struct {
	Config  string `help:"YAML file with flag names as keys; flags and environment win over it." type:"existingfile" placeholder:"FILE" short:"c"`
	Verbose bool   `help:"Log debug messages." short:"v"`
	LogJSON bool   `help:"Log as JSON lines instead of text." name:"log-json"`

	Serve      serveCmd      `cmd:"" help:"Run a node: ingest engine events, index them, answer queries."`
	Join       joinCmd       `cmd:"" help:"Run a node as a member of a cluster: one address of a member is enough."`
	Members    membersCmd    `cmd:"" help:"List the nodes of the cluster."`
	Snapshot   snapshotCmd   `cmd:"" help:"Have a node write its copies to disk."`
	Shards     shardsCmd     `cmd:"" help:"Show which node has which partitions, and changes under way."`
	Leave      leaveCmd      `cmd:"" help:"Have a node give away what it has and go."`
	Remove     removeCmd     `cmd:"" help:"Declare a dead node gone for good."`
	Register   registerCmd   `cmd:"" help:"Tell a node about a worker's event stream."`
	Unregister unregisterCmd `cmd:"" help:"Forget a worker or one of its ranks."`
	Workers    workersCmd    `cmd:"" help:"List workers and the state of their streams."`
	Query      queryCmd      `cmd:"" help:"Ask how many leading tokens of a prompt every worker holds."`
	Status     statusCmd     `cmd:"" help:"Show a node's health, index and streams on one page."`
	Top        topCmd        `cmd:"" help:"Watch a node: events, blocks, lag, busiest workers."`
	Mock       mockCmd       `cmd:"" help:"Run mock inference workers that publish real event streams."`
	Replay     replayCmd     `cmd:"" help:"Publish a recorded stream of event batches, or record one."`
	Demo       demoCmd       `cmd:"" help:"Run a cluster and mock workers feeding it, and watch them."`
	Bench      benchCmd      `cmd:"" help:"Measure the index on known work, answers checked."`
	Version    versionCmd    `cmd:"" help:"Print the version."`
}

// app is what every command gets besides its own flags.
type app struct {
	ctx    context.Context
	stdout io.Writer
	stderr io.Writer
	log    *slog.Logger
}

// gcPercent replaces the runtime's default of 100. Blocks live outside the Go heap, so
// the heap is tiny (14 MiB at 50 million blocks) and a collection is cheap but would
// come with every few megabytes of garbage: 3 % of the CPU at full load with 100, 0.7 %
// with 400 (docs/benchmarks.md). GOGC in the environment wins.
const gcPercent = 400

func main() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// run parses args and runs the command; it returns the exit code. It is main
// without the process, for tests.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	var c commands
	code := -1
	switch {
	case len(args) == 0:
		args = []string{"--help"}
	case args[0] == "--version":
		args = []string{"version"}
	}
	args = joinNegatives(args)
	dropEmpty()
	options := []kong.Option{
		kong.Name("kvcluster"),
		kong.Description("A sharded index of LLM KV caches: which worker already holds how much of a prompt.\n\nStart with: kvcluster demo"),
		kong.UsageOnError(),
		kong.Writers(stdout, stderr),
		kong.Exit(func(n int) { code = n }),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true, NoExpandSubcommands: true}),
		kong.DefaultEnvars("KVCLUSTER"),
		kong.NamedMapper("path", kong.MapperFunc(decodePath)),
		kong.NamedMapper("existingfile", kong.MapperFunc(decodeExistingFile)),
	}
	if file := configFile(args); file != "" {
		resolver, err := newFileResolver(file)
		if err != nil {
			fmt.Fprintln(stderr, "kvcluster:", err)
			return exitUsage
		}
		options = append(options, kong.Resolvers(resolver))
	}
	parser, err := kong.New(&c, options...)
	if err != nil {
		fmt.Fprintln(stderr, "kvcluster: the command line is defined wrongly:", err)
		return exitFailed
	}
	kctx, err := parser.Parse(args)
	if code >= 0 { // --help has been printed
		return code
	}
	if err != nil {
		fmt.Fprintln(stderr, "kvcluster:", err)
		fmt.Fprintln(stderr, "Try: kvcluster", helpFor(err))
		return exitUsage
	}
	a := &app{ctx: ctx, stdout: stdout, stderr: stderr, log: newLogger(stderr, c.Verbose, c.LogJSON)}
	err = kctx.Run(a)
	if err == nil || errors.Is(err, context.Canceled) && ctx.Err() != nil {
		return exitOK
	}
	fmt.Fprintln(stderr, "kvcluster:", err)
	return exitCode(err)
}

// decodePath makes a path absolute. An empty one stays empty, so that KVCLUSTER_DATA=
// means no data folder and not the one that the command was started in.
func decodePath(ctx *kong.DecodeContext, target reflect.Value) error {
	var path string
	if err := ctx.Scan.PopValueInto("path", &path); err != nil {
		return err
	}
	if path != "" && path != "-" {
		path = kong.ExpandPath(path)
	}
	target.SetString(path)
	return nil
}

// decodeExistingFile is decodePath for a file that must be there.
func decodeExistingFile(ctx *kong.DecodeContext, target reflect.Value) error {
	if err := decodePath(ctx, target); err != nil {
		return err
	}
	path := target.String()
	if path == "" || path == "-" {
		return nil
	}
	st, err := os.Stat(path)
	switch {
	case err != nil:
		return err
	case st.IsDir():
		return fmt.Errorf("%s is a directory", path)
	}
	return nil
}

// dropEmpty forgets environment variables of this program without a value, as compose
// files and units leave them: they mean that nothing is said.
func dropEmpty() {
	for _, v := range os.Environ() {
		if name, value, _ := strings.Cut(v, "="); value == "" && strings.HasPrefix(name, "KVCLUSTER_") {
			_ = os.Unsetenv(name) // fails for names that cannot be in the environment
		}
	}
}

// joinNegatives writes "--flag -1" as "--flag=-1", since the parser takes a word that
// begins with a dash for a flag.
func joinNegatives(args []string) []string {
	var out []string
	for i := 0; i < len(args); i++ {
		a := args[i]
		if a == "--" {
			return append(out, args[i:]...)
		}
		if i+1 < len(args) && strings.HasPrefix(a, "--") && !strings.Contains(a, "=") && negative.MatchString(args[i+1]) {
			a += "=" + args[i+1]
			i++
		}
		out = append(out, a)
	}
	return out
}

// negative is a number, size or duration below zero.
var negative = regexp.MustCompile(`^-[0-9.]`)

// helpFor names the help that fits a fault of the command line.
func helpFor(err error) string {
	var pe *kong.ParseError
	if errors.As(err, &pe) && pe.Context != nil && pe.Context.Selected() != nil {
		return pe.Context.Selected().Name + " --help"
	}
	return "--help"
}

func newLogger(w io.Writer, verbose, asJSON bool) *slog.Logger {
	opts := &slog.HandlerOptions{Level: slog.LevelInfo}
	if verbose {
		opts.Level = slog.LevelDebug
	}
	if asJSON {
		return slog.New(slog.NewJSONHandler(w, opts))
	}
	return slog.New(slog.NewTextHandler(w, opts))
}
