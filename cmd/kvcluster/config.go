package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/alecthomas/kong"
	"go.yaml.in/yaml/v3"
)

// configFile finds the file named by --config, -c or KVCLUSTER_CONFIG before the
// command line is parsed, because the file itself takes part in parsing.
func configFile(args []string) string {
	for i, a := range args {
		switch {
		case a == "--":
			return os.Getenv("KVCLUSTER_CONFIG")
		case (a == "--config" || a == "-c") && i+1 < len(args):
			return args[i+1]
		case strings.HasPrefix(a, "--config="):
			return strings.TrimPrefix(a, "--config=")
		}
	}
	return os.Getenv("KVCLUSTER_CONFIG")
}

// fileResolver gives flags their value from a YAML file. Keys are flag names
// without dashes in front; a key that is no flag of any command is an error.
type fileResolver struct {
	path   string
	values map[string]any
}

func newFileResolver(path string) (*fileResolver, error) {
	raw, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("configuration file %s does not exist", path)
	}
	if err != nil {
		return nil, fmt.Errorf("read configuration: %w", err)
	}
	r := &fileResolver{path: path, values: map[string]any{}}
	if err := yaml.Unmarshal(raw, &r.values); err != nil {
		return nil, fmt.Errorf("configuration file %s is not a YAML map of flag names to values: %w", path, err)
	}
	return r, nil
}

// Validate rejects unknown keys; it implements kong.Resolver.
func (r *fileResolver) Validate(app *kong.Application) error {
	known := map[string]bool{}
	collectFlags(app.Node, known)
	var unknown []string
	for k := range r.values {
		if !known[k] {
			unknown = append(unknown, k)
		}
	}
	if len(unknown) > 0 {
		slices.Sort(unknown)
		return fmt.Errorf("configuration file %s has keys that are no flags: %s (see kvcluster serve --help)", r.path, strings.Join(unknown, ", "))
	}
	return nil
}

func collectFlags(n *kong.Node, into map[string]bool) {
	for _, f := range n.Flags {
		into[f.Name] = true
	}
	for _, c := range n.Children {
		collectFlags(c, into)
	}
}

// Resolve implements kong.Resolver. An environment variable wins over the file.
func (r *fileResolver) Resolve(_ *kong.Context, _ *kong.Path, flag *kong.Flag) (any, error) {
	for _, env := range flag.Envs {
		if _, set := os.LookupEnv(env); set {
			return nil, nil
		}
	}
	v, ok := r.values[flag.Name]
	if !ok {
		return nil, nil
	}
	switch v := v.(type) {
	case []any:
		parts := make([]string, len(v))
		for i, p := range v {
			parts[i] = fmt.Sprint(p)
		}
		return strings.Join(parts, ","), nil
	case map[string]any:
		return nil, fmt.Errorf("configuration file %s: %s must be a plain value, not a map", r.path, flag.Name)
	}
	return fmt.Sprint(v), nil
}
