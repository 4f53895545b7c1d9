package engine

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// ErrFrames: the frames of a message are not those of an event batch.
var ErrFrames = errors.New("bad frames")

// EndSequence marks the end of a replay; no batch may carry it.
const EndSequence = ^uint64(0)

// ParseLive takes a message of a publisher apart: [topic][sequence][payload]. All
// known engines send three frames; with more, payload and sequence are the last
// two. The results alias frames.
func ParseLive(frames [][]byte) (topic []byte, seq uint64, payload []byte, err error) {
	n := len(frames)
	if n < 3 {
		return nil, 0, nil, fmt.Errorf("live message: %w: %d of at least 3", ErrFrames, n)
	}
	if seq, err = parseSequence(frames[n-2]); err != nil {
		return nil, 0, nil, fmt.Errorf("live message: %w", err)
	}
	if seq == EndSequence {
		return nil, 0, nil, fmt.Errorf("live message: %w: reserved sequence", ErrFrames)
	}
	return frames[0], seq, frames[n-1], nil
}

// ParseReplay takes a reply of a replay socket apart: [topic][sequence][payload],
// or without the topic (vLLM before 0.26, SGLang); a leading empty delimiter does
// not matter. An empty last frame is the end of the replay. The results alias
// frames.
func ParseReplay(frames [][]byte) (topic []byte, seq uint64, payload []byte, end bool, err error) {
	n := len(frames)
	if n < 2 {
		return nil, 0, nil, false, fmt.Errorf("replay reply: %w: %d of at least 2", ErrFrames, n)
	}
	if seq, err = parseSequence(frames[n-2]); err != nil {
		return nil, 0, nil, false, fmt.Errorf("replay reply: %w", err)
	}
	payload = frames[n-1]
	if len(payload) == 0 {
		return nil, seq, nil, true, nil
	}
	if seq == EndSequence {
		return nil, 0, nil, false, fmt.Errorf("replay reply: %w: reserved sequence", ErrFrames)
	}
	if n > 2 {
		topic = frames[n-3]
	}
	return topic, seq, payload, false, nil
}

func parseSequence(f []byte) (uint64, error) {
	if len(f) != 8 {
		return 0, fmt.Errorf("%w: sequence of %d bytes", ErrFrames, len(f))
	}
	return binary.BigEndian.Uint64(f), nil
}
