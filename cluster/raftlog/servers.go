package raftlog

import (
	"fmt"
	"time"

	"github.com/hashicorp/raft"
)

// Server is one server of raft's own configuration.
type Server struct {
	ID      raft.ServerID
	Address raft.ServerAddress
	Voter   bool
}

// serverTimeout bounds one change of raft's configuration.
const serverTimeout = 10 * time.Second

// Servers returns raft's own configuration.
func (l *Log) Servers() ([]Server, error) {
	f := l.raft.GetConfiguration()
	if err := f.Error(); err != nil {
		return nil, fmt.Errorf("raft configuration: %w", err)
	}
	var out []Server
	for _, s := range f.Configuration().Servers {
		out = append(out, Server{s.ID, s.Address, s.Suffrage == raft.Voter})
	}
	return out, nil
}

// AddServer adds a non-voter, or changes the address of a server that is there. Only
// the leader can.
func (l *Log) AddServer(id raft.ServerID, addr raft.ServerAddress) error {
	servers, err := l.Servers()
	if err != nil {
		return err
	}
	voter := false
	for _, s := range servers {
		if s.ID == id && s.Address == addr {
			return nil
		}
		if s.ID == id {
			voter = s.Voter
		}
	}
	if voter {
		return l.outcome("change address of", id, l.raft.AddVoter(id, addr, 0, serverTimeout))
	}
	return l.outcome("add", id, l.raft.AddNonvoter(id, addr, 0, serverTimeout))
}

// Promote makes a server a voter, unless there are MaxVoters already. The caller makes
// sure that it has caught up: a voter counts for the quorum at once.
func (l *Log) Promote(id raft.ServerID) (bool, error) {
	servers, err := l.Servers()
	if err != nil {
		return false, err
	}
	voters := 0
	var target *Server
	for i, s := range servers {
		if s.Voter {
			voters++
		}
		if s.ID == id {
			target = &servers[i]
		}
	}
	if target == nil || target.Voter || voters >= MaxVoters {
		return false, nil
	}
	return true, l.outcome("promote", id, l.raft.AddVoter(id, target.Address, 0, serverTimeout))
}

// RemoveServer takes a server out of raft's configuration.
func (l *Log) RemoveServer(id raft.ServerID) error {
	return l.outcome("remove", id, l.raft.RemoveServer(id, 0, serverTimeout))
}

// Demote makes a voter a non-voter.
func (l *Log) Demote(id raft.ServerID) error {
	return l.outcome("demote", id, l.raft.DemoteVoter(id, 0, serverTimeout))
}

// TransferLeadership gives the lead to another voter. The caller makes sure that it is
// alive: raft waits an election time-out for it and then goes on leading.
func (l *Log) TransferLeadership(to Server) error {
	if err := l.raft.LeadershipTransferToServer(to.ID, to.Address).Error(); err != nil {
		return fmt.Errorf("transfer leadership to %s: %w", to.ID, err)
	}
	return nil
}

func (l *Log) outcome(verb string, id raft.ServerID, f raft.IndexFuture) error {
	if err := f.Error(); err != nil {
		return fmt.Errorf("%s raft server %s: %w", verb, id, err)
	}
	return nil
}
