// Package transporttest is the contract of package transport as a test suite. Both
// implementations run it, so what ingest may rely on is what both of them do.
//
// The suite never sleeps: it waits for something to be seen, with a deadline, and
// says what was seen last when that passes. Where a test must show that nothing
// comes, it sends something behind it that must come.
package transporttest
