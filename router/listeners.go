package router

import (
	"context"
	"fmt"
	"net/http"
	"slices"
)

// pauseListener serves POST /test/pause_listener.
func (c *call) pauseListener() error {
	return c.control("paused", c.router.cluster.PauseStream, StreamPending, StreamActive)
}

// resumeListener serves POST /test/resume_listener.
func (c *call) resumeListener() error {
	return c.control("resumed", c.router.cluster.ResumeStream, StreamPaused, StreamFailed)
}

// control does something to a stream that is in one of the given states.
func (c *call) control(done string, do func(context.Context, string, uint32) error, from ...StreamState) error {
	q, err := c.parse(listenerBody, false)
	if err != nil {
		return err
	}
	if err := q.require(fInstance); err != nil {
		return err
	}
	w, ok := c.router.cluster.View().Worker(q.instance)
	if !ok {
		return &apiError{status: http.StatusNotFound, text: fmt.Sprintf("instance %s not found", q.instance)}
	}
	for _, rank := range w.Ranks {
		if rank.Rank != q.rank {
			continue
		}
		if s := stateOf(c.router.streamsByRank(), rank, w); !slices.Contains(from, s) {
			return &apiError{status: http.StatusConflict, text: fmt.Sprintf("instance %s dp_rank %d cannot be %s from status %s", q.instance, q.rank, done, s)}
		}
		if err := do(c.r.Context(), q.instance, q.rank); err != nil {
			return err
		}
		return c.ok(http.StatusOK)
	}
	return &apiError{status: http.StatusNotFound, text: fmt.Sprintf("instance %s dp_rank %d not found", q.instance, q.rank)}
}
