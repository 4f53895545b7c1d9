package raftlog

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/raft"
)

// server is a wire whose calls are counted and answered.
type server struct {
	*Wire
	id    raft.ServerID
	asked chan string
}

func newServer(t *testing.T, id, cluster string) *server {
	t.Helper()
	w, err := NewWire(WireConfig{ServerID: id, Bind: "127.0.0.1:0", Pool: 1, Timeout: 2 * time.Second, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	if cluster != "" {
		w.SetCluster(cluster)
	}
	s := &server{Wire: w, id: raft.ServerID(id), asked: make(chan string, 100)}
	done := make(chan struct{})
	go func() {
		for {
			select {
			case rpc := <-w.Consumer():
				s.asked <- fmt.Sprintf("%T", rpc.Command)
				switch rpc.Command.(type) {
				case *raft.AppendEntriesRequest:
					rpc.Respond(&raft.AppendEntriesResponse{Success: true}, nil)
				case *raft.RequestVoteRequest:
					rpc.Respond(&raft.RequestVoteResponse{Granted: true}, nil)
				case *raft.RequestPreVoteRequest:
					rpc.Respond(&raft.RequestPreVoteResponse{Granted: true}, nil)
				case *raft.TimeoutNowRequest:
					rpc.Respond(&raft.TimeoutNowResponse{}, nil)
				case *raft.InstallSnapshotRequest:
					rpc.Respond(&raft.InstallSnapshotResponse{Success: true}, nil)
				default:
					rpc.Respond(nil, errors.New("not expected"))
				}
			case <-done:
				return
			}
		}
	}()
	t.Cleanup(func() {
		if err := w.Close(); err != nil {
			t.Error(err)
		}
		close(done)
	})
	return s
}

// everyCall makes each call of raft to a server that is thought to be at
// an address.
func (s *server) everyCall(id raft.ServerID, at raft.ServerAddress) map[string]error {
	pipe, err := s.AppendEntriesPipeline(id, at)
	if err == nil {
		pipe.Close()
	}
	return map[string]error{
		"pipeline": err,
		"append":   s.AppendEntries(id, at, &raft.AppendEntriesRequest{Term: 99, Entries: []*raft.Log{{Index: 1, Term: 99}}}, &raft.AppendEntriesResponse{}),
		"vote":     s.RequestVote(id, at, &raft.RequestVoteRequest{Term: 99}, &raft.RequestVoteResponse{}),
		"pre-vote": s.RequestPreVote(id, at, &raft.RequestPreVoteRequest{Term: 99}, &raft.RequestPreVoteResponse{}),
		"lead":     s.TimeoutNow(id, at, &raft.TimeoutNowRequest{}, &raft.TimeoutNowResponse{}),
		"snapshot": s.InstallSnapshot(id, at, &raft.InstallSnapshotRequest{Term: 99}, &raft.InstallSnapshotResponse{}, strings.NewReader("")),
	}
}

// A server hears only those of its cluster who mean it: the address of a dead server may
// be that of another one by now, of this cluster or another.
func TestNobodyWritesIntoAStrangersLog(t *testing.T) {
	a := newServer(t, "a", "one")
	for what, s := range map[string]*server{
		"of another cluster":   newServer(t, "b", "two"),
		"another of this one":  newServer(t, "c", "one"),
		"that has not joined":  newServer(t, "b", ""),
		"with an endless name": newServer(t, "b", "one!"),
	} {
		for call, err := range a.everyCall("b", s.LocalAddr()) {
			if !errors.Is(err, ErrStranger) {
				t.Errorf("%s to a server %s: %v", call, what, err)
			}
		}
		select {
		case got := <-s.asked:
			t.Errorf("a server %s heard %s", what, got)
		default:
		}
	}
	b := newServer(t, "b", "one")
	for call, err := range a.everyCall("b", b.LocalAddr()) {
		if err != nil {
			t.Errorf("%s to the server that is meant: %v", call, err)
		}
	}
	if len(b.asked) != 5 { // a pipeline alone says nothing
		t.Errorf("it heard only %d calls", len(b.asked))
	}
}

// Who says nothing, or nonsense, keeps nobody else out.
func TestNonsenseAtTheWire(t *testing.T) {
	a, b := newServer(t, "a", "one"), newServer(t, "b", "one")
	for _, text := range []string{"", "GET / HTTP/1.1\r\n\r\n", "KVRAFT", "KVRAFT\x01\xff\xff", "KVRAFT\x02\x00\x00", "\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"} {
		conn, err := net.Dial("tcp", string(b.LocalAddr()))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if _, err := conn.Write([]byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	if err := a.RequestVote("b", b.LocalAddr(), &raft.RequestVoteRequest{}, &raft.RequestVoteResponse{}); err != nil {
		t.Error(err)
	}
	if _, err := NewWire(WireConfig{ServerID: "a", Bind: "0.0.0.0:0", Logger: slog.New(slog.DiscardHandler)}); err == nil {
		t.Error("an address that is none was taken")
	}
}
