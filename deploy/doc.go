// Package deploy is for running kvcluster: image, compose file, systemd unit, settings of
// the engines, alert rules; README.md says how to use each. The package has no code, only
// the test that holds these files against the binary: a command, flag, variable, metric,
// port or address that does not exist, or that two files disagree on, is an error.
package deploy
