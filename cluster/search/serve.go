package search

import (
	"context"
	"fmt"

	"github.com/kvcluster/kvcluster/indexer"
)

// maxIdleServers bounds the handles on the index that are kept for calls of others.
const maxIdleServers = 64

// server is what one call of another node needs.
type server struct {
	reader   indexer.Reader
	scratch  *scratch
	question question
	answer   answer
}

// serve answers a call (rule Q2): behind the asker's map index it waits, within the time
// of the call; ahead of it, it answers by its own map and says which that is.
func (s *Search) serve(ctx context.Context, peer string, request []byte) ([]byte, error) {
	s.count.served.Add(1)
	x := s.server()
	defer s.release(x)
	if err := decodeQuestion(request, &x.question); err != nil {
		s.count.malformed.Add(1)
		return nil, fmt.Errorf("read for %s: %w", peer, err)
	}
	if !s.cfg.broken.behind {
		if err := s.catchUp(ctx, x.question.index); err != nil {
			s.count.servedBehind.Add(1)
			return nil, fmt.Errorf("read for %s: %w", peer, err)
		}
	}
	s.read(x.reader, x.scratch, &x.question, &x.answer)
	if x.answer.status != statusOK {
		s.count.servedNotOwner.Add(1)
	}
	return appendAnswer(make([]byte, 0, 64+16*len(x.answer.prefixes)+8*len(x.answer.path)+len(x.answer.states)+2*len(x.answer.scores.Rows)), x.question.kind, &x.answer), nil
}

func (s *Search) server() *server {
	select {
	case x := <-s.servers:
		return x
	default:
		return &server{reader: s.deps.Index.NewReader(), scratch: newScratch()}
	}
}

func (s *Search) release(x *server) {
	x.scratch.plan = nil
	select {
	case s.servers <- x:
	default:
		x.reader.Close()
	}
}
