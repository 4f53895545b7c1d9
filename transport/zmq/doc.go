// Package zmq carries engines' streams over libzmq.
package zmq
