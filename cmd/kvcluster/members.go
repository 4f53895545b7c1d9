package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"text/tabwriter"
	"time"

	"github.com/kvcluster/kvcluster/cmd/internal/client"
)

type membersCmd struct {
	serverFlags
	JSON bool `help:"Print JSON, as GET /members answers." name:"json"`
}

// Help shows the use in scripts.
func (membersCmd) Help() string {
	return `Examples:
  kvcluster members
  kvcluster members --json | jq -r '.[] | select(.alive | not) | .name'`
}

// memberEntry is the part of GET /members that commands use.
type memberEntry struct {
	Name       string  `json:"name"`
	Address    string  `json:"address"`
	HTTP       string  `json:"http"`
	Role       string  `json:"role"`
	Phase      string  `json:"phase"`
	Alive      bool    `json:"alive"`
	Since      float64 `json:"since_seconds"`
	Zone       string  `json:"zone"`
	Version    string  `json:"version"`
	Partitions int     `json:"partitions"`
	Ready      int     `json:"ready_partitions"`
	Sources    int     `json:"sources"`
}

// Run prints one line a member.
func (c *membersCmd) Run(a *app) error {
	cl, err := c.client()
	if err != nil {
		return err
	}
	var raw json.RawMessage
	if err := cl.Get(a.ctx, "/members", nil, &raw); err != nil {
		return err
	}
	if c.JSON {
		_, err = a.stdout.Write(append(raw, '\n'))
		return err
	}
	var ms []memberEntry
	if err := json.Unmarshal(raw, &ms); err != nil {
		return fmt.Errorf("the answer of /members is not what was expected: %w", err)
	}
	t := tabwriter.NewWriter(a.stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "NAME\tSTATE\tROLE\tPARTITIONS\tREADY\tSOURCES\tZONE\tHTTP\tVERSION")
	for _, m := range ms {
		state := m.Phase
		if !m.Alive {
			state = "dead"
			if m.Since > 0 {
				state += fmt.Sprintf(" %v", time.Duration(m.Since)*time.Second)
			}
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%d\t%d\t%d\t%s\t%s\t%s\n", m.Name, state, m.Role, m.Partitions, m.Ready, m.Sources, orDash(m.Zone), orDash(m.HTTP), orDash(m.Version))
	}
	return t.Flush()
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

type leaveCmd struct {
	serverFlags
	Name   string        `arg:"" help:"Member that is to give away what it has and go."`
	Wait   time.Duration `help:"Wait for so long until it is gone; the leave goes on afterwards." default:"10m"`
	NoWait bool          `help:"Return as soon as the cluster knows."`
}

// Help says what happens.
func (leaveCmd) Help() string {
	return `The member's partitions are copied to others and its worker streams are read elsewhere;
then it is no member any more and its process ends by itself. No score is lost.

Examples:
  kvcluster leave n3
  kvcluster leave n3 --no-wait && kvcluster shards`
}

// Run asks for it and shows how far it is.
func (c *leaveCmd) Run(a *app) error {
	cl, err := c.client()
	if err != nil {
		return err
	}
	if err := cl.Post(a.ctx, "/members/"+url.PathEscape(c.Name)+"/leave", struct{}{}, nil); err != nil {
		return about("leave of "+c.Name, err)
	}
	if c.NoWait {
		_, err = fmt.Fprintf(a.stdout, "%s leaves. See how far it is: kvcluster members\n", c.Name)
		return err
	}
	last := ""
	for end := time.Now().Add(c.Wait); ; {
		m, err := findMember(a, cl, c.Name)
		switch {
		case err == nil && m == nil:
			_, err = fmt.Fprintf(a.stdout, "%s has left\n", c.Name)
			return err
		case err == nil:
			if line := fmt.Sprintf("%s still has %d partitions and %d sources", c.Name, m.Partitions, m.Sources); line != last {
				fmt.Fprintln(a.stdout, line)
				last = line
			}
		case !errors.Is(err, client.ErrNoServer) || a.ctx.Err() != nil: // the node that was asked may be the one that left
			return err
		default:
			return fmt.Errorf("leave of %s goes on, but the node that was asked does not answer any more (give --server another one): %w", c.Name, err)
		}
		if time.Now().After(end) {
			return fmt.Errorf("leave of %s goes on; after %v %s", c.Name, c.Wait, last)
		}
		select {
		case <-a.ctx.Done():
			return a.ctx.Err()
		case <-time.After(500 * time.Millisecond):
		}
	}
}

// about says what an error is about, unless the node's answer does so itself.
func about(what string, err error) error {
	var answer *client.Error
	if errors.As(err, &answer) {
		return err
	}
	return fmt.Errorf("%s: %w", what, err)
}

// findMember returns a member, or nil when the cluster has none of that name.
func findMember(a *app, cl *client.Client, name string) (*memberEntry, error) {
	var ms []memberEntry
	if err := cl.Get(a.ctx, "/members", nil, &ms); err != nil {
		return nil, err
	}
	for i := range ms {
		if ms[i].Name == name && ms[i].Phase != "joining" {
			return &ms[i], nil
		}
	}
	return nil, nil
}

type removeCmd struct {
	serverFlags
	Name  string `arg:"" help:"Member that is gone for good."`
	Force bool   `help:"Also when it seems to be alive: what only it holds is lost."`
}

// Help says when to use it.
func (removeCmd) Help() string {
	return `Declares a dead member gone: others make its copies and read its streams at once, without
waiting for the grace period. A node that comes back later starts empty. For a member that
is alive use leave.

Examples:
  kvcluster remove n3`
}

// Run removes it.
func (c *removeCmd) Run(a *app) error {
	cl, err := c.client()
	if err != nil {
		return err
	}
	path := "/members/" + url.PathEscape(c.Name)
	if c.Force {
		path += "?force=true"
	}
	if err := cl.Delete(a.ctx, path, nil); err != nil {
		return about("remove "+c.Name, err)
	}
	_, err = fmt.Fprintf(a.stdout, "%s is no member any more; what it had is being copied elsewhere (kvcluster shards)\n", c.Name)
	return err
}
