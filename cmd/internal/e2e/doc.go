// Package e2e has the tests of a whole node from outside: real sockets, real HTTP,
// mock engines, and chaos/model as the judge. There is no code but tests.
package e2e
