package main

import (
	"errors"

	"github.com/kvcluster/kvcluster/cmd/internal/client"
)

// errUsage marks faults of the command line that only the command can see.
var errUsage = errors.New("wrong use")

func exitCode(err error) int {
	switch {
	case errors.Is(err, errUsage), errors.Is(err, client.ErrBadRequest):
		return exitUsage
	case errors.Is(err, client.ErrNotFound):
		return exitNotFound
	case errors.Is(err, client.ErrNoServer):
		return exitNoServer
	}
	return exitFailed
}
