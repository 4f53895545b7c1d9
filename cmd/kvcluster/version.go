package main

import (
	"encoding/json"
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"
)

// version is set at link time from the tag; an untagged build says "devel".
var version = "devel"

type versionCmd struct {
	JSON bool `help:"Print JSON." name:"json"`
}

// Help shows both forms.
func (versionCmd) Help() string {
	return `Examples:
  kvcluster version
  kvcluster version --json | jq -r .version`
}

// Run prints the version, the commit if the build knows it, and the toolchain.
func (c *versionCmd) Run(a *app) error {
	v := struct {
		Version string `json:"version"`
		Commit  string `json:"commit,omitempty"`
		Go      string `json:"go"`
		Target  string `json:"target"`
	}{Version: version, Go: runtime.Version(), Target: runtime.GOOS + "/" + runtime.GOARCH}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" {
				v.Commit = s.Value
			}
		}
	}
	if c.JSON {
		return json.NewEncoder(a.stdout).Encode(v)
	}
	commit := v.Commit
	if len(commit) >= 7 && strings.Contains(v.Version, commit[:7]) {
		commit = "" // an untagged build's version is its commit
	}
	_, err := fmt.Fprintln(a.stdout, strings.Join(strings.Fields(fmt.Sprint("kvcluster ", v.Version, " ", commit, " ", v.Go, " ", v.Target)), " "))
	return err
}
