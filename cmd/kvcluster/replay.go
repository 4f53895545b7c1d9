package main

import "errors"

type replayCmd struct{}

func (c *replayCmd) Run(a *app) error { return errors.New("x") }

type benchCmd struct{}

func (c *benchCmd) Run(a *app) error { return errors.New("x") }
