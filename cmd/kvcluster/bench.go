package main

import "errors"

type benchCmd struct{}

func (c *benchCmd) Run(a *app) error { return errors.New("x") }
