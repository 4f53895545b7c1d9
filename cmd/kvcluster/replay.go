package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/kvcluster/kvcluster/chaos/recording"
	"github.com/kvcluster/kvcluster/cmd/internal/client"
	"github.com/kvcluster/kvcluster/transport"
	"github.com/kvcluster/kvcluster/transport/zmq"
)

type replayCmd struct {
	serverFlags
	File     string        `arg:"" help:"Recording to publish, or to write with --record." type:"path"`
	Record   string        `help:"Record this publisher (tcp://host:port) into the file instead." placeholder:"ENDPOINT"`
	Batches  uint64        `help:"With --record: stop after so many batches; 0 = until interrupted." default:"0"`
	Endpoint string        `help:"Address to publish on; port 0 lets the system choose." default:"tcp://127.0.0.1:0"`
	Replay   string        `help:"Address of a replay socket; empty = none." default:"tcp://127.0.0.1:0"`
	Speedup  float64       `help:"Play the recorded times so many times faster (1 unless --rate is given)." xor:"pace"`
	Rate     float64       `help:"Batches a second instead of the recorded times." xor:"pace"`
	Stay     bool          `help:"Keep the sockets open at the end, answering replays."`
	Register string        `help:"Register the publisher as this instance at --server." placeholder:"INSTANCE"`
	Model    string        `help:"With --register: model name." default:"replay" short:"m"`
	Block    uint32        `help:"With --register: tokens per block." default:"16" short:"b" name:"block-size"`
	Keep     bool          `help:"With --register: leave the instance registered at the end."`
	Settle   time.Duration `help:"Pause before the first batch, for subscribers to connect." default:"500ms"`
}

// Help shows both directions.
func (replayCmd) Help() string {
	return `Batches are kept byte for byte, whatever engine sent them.

Examples:
  kvcluster replay --record tcp://10.0.0.7:5557 worker7.rec
  kvcluster replay worker7.rec --speedup 10 --register 7 --model llama-3 --block-size 16 --stay`
}

// Run records or publishes until the end or until interrupted.
func (c *replayCmd) Run(a *app) error {
	network, err := zmq.New(zmq.Config{Logger: a.log})
	if err != nil {
		return err
	}
	if c.Record != "" {
		err = c.record(a, network)
	} else {
		err = c.publish(a, network)
	}
	if errors.Is(err, recording.ErrConfig) {
		err = fmt.Errorf("%w: %w", errUsage, err)
	}
	return errors.Join(err, network.Close())
}

func (c *replayCmd) record(a *app, network transport.Network) (err error) {
	f, err := os.Create(c.File)
	if err != nil {
		return fmt.Errorf("%w: %w", errUsage, err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	rec, err := recording.NewCapture(f, recording.CaptureConfig{Subscribe: transport.SubscribeConfig{Endpoint: c.Record}, Batches: c.Batches})
	if err != nil {
		return err
	}
	line := func() string {
		s := rec.Stats()
		return fmt.Sprintf("recorded %d batches, %d bytes, %d gaps, %d skipped, %d connections", s.Batches, s.Bytes, s.Gaps, s.Skipped, s.Connects)
	}
	defer progress(a.stderr, line)()
	if err := rec.Run(a.ctx, network); err != nil {
		return err
	}
	_, err = fmt.Fprintln(a.stdout, line())
	return err
}

func (c *replayCmd) publish(a *app, network transport.Network) error {
	speedup := c.Speedup
	if speedup == 0 && c.Rate == 0 {
		speedup = 1
	}
	p, err := recording.NewPlayer(recording.PlayerConfig{
		Path: c.File, Endpoint: c.Endpoint, ReplayEndpoint: c.Replay, Speedup: speedup, Rate: c.Rate, Settle: c.Settle, Stay: c.Stay,
	})
	if err != nil {
		return err
	}
	if _, err := os.Stat(c.File); err != nil {
		return fmt.Errorf("%w: %w", errUsage, err)
	}
	if err := p.Open(network); err != nil {
		return err
	}
	fmt.Fprintf(a.stderr, "publishing at %s, replays at %s\n", p.Endpoint(), p.ReplayEndpoint())
	if c.Register != "" {
		leave, err := c.register(a, p)
		if err != nil {
			ctx, cancel := context.WithCancel(a.ctx)
			cancel()
			return errors.Join(err, p.Run(ctx)) // a run that is over at once closes the sockets
		}
		if !c.Keep {
			defer leave()
		}
	}
	line := func() string {
		s := p.Stats()
		return fmt.Sprintf("published %d batches, %d bytes, up to %v of the recording", s.Batches, s.Bytes, s.At.Round(time.Millisecond))
	}
	defer progress(a.stderr, line)()
	if err := p.Run(a.ctx); err != nil {
		return err
	}
	_, err = fmt.Fprintln(a.stdout, line())
	return err
}

// register tells the node of the publisher; leave takes that back.
func (c *replayCmd) register(a *app, p *recording.Player) (leave func(), err error) {
	cl, err := client.New(c.Server, c.Timeout)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errUsage, err)
	}
	body := map[string]any{"instance_id": instanceID(c.Register), "endpoint": p.Endpoint(), "model_name": c.Model, "block_size": c.Block}
	if r := p.ReplayEndpoint(); r != "" {
		body["replay_endpoint"] = r
	}
	if err := cl.Post(a.ctx, "/register", body, nil); err != nil {
		return nil, fmt.Errorf("register %s: %w", c.Register, err)
	}
	return func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(a.ctx), 5*time.Second)
		defer cancel()
		if err := cl.Post(ctx, "/unregister", map[string]any{"instance_id": instanceID(c.Register), "model_name": c.Model}, nil); err != nil {
			fmt.Fprintf(a.stderr, "unregister %s: %v\n", c.Register, err)
		}
	}, nil
}

// progress writes line every two seconds until the function it returns is called.
func progress(w io.Writer, line func() string) (stop func()) {
	end, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		t := time.NewTicker(2 * time.Second)
		defer t.Stop()
		for {
			select {
			case <-end:
				return
			case <-t.C:
				fmt.Fprintln(w, line())
			}
		}
	}()
	return func() {
		close(end)
		<-ended
	}
}
