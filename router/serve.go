package router

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"syscall"
)

// ErrAddressInUse is wrapped by Run's error when something else listens on the port.
var ErrAddressInUse = errors.New("port in use")

// Run serves until ctx is done, then lets requests that are running finish for a while
// and closes everything. It returns nil after an orderly end.
func (r *Router) Run(ctx context.Context) error {
	defer r.Close()
	if err := r.access.reopen(); err != nil {
		return err
	}
	main, err := listen(ctx, r.cfg.Address)
	if err != nil {
		return err
	}
	// Requests that still wait for something when the grace is over are told to give up.
	requests, giveUp := context.WithCancel(context.WithoutCancel(ctx))
	defer giveUp()
	servers := []*http.Server{r.server(requests, r.Handler())}
	listeners := []net.Listener{main}
	if r.cfg.DebugAddress != "" {
		debug, err := listen(ctx, r.cfg.DebugAddress)
		if err != nil {
			main.Close()
			return fmt.Errorf("pprof: %w", err)
		}
		pprofServer := r.server(requests, pprofHandler())
		pprofServer.WriteTimeout = 0 // a profile takes as long as it is asked to
		servers, listeners = append(servers, pprofServer), append(listeners, debug)
	}
	ended := make(chan error, len(servers))
	for i, s := range servers {
		go func() { ended <- s.Serve(listeners[i]) }()
	}
	r.log.Info("serving HTTP", "address", main.Addr().String())
	if r.cfg.OnListen != nil {
		r.cfg.OnListen(main.Addr())
	}
	var failed error
	left := len(servers)
	select {
	case <-ctx.Done():
	case err := <-ended:
		failed = fmt.Errorf("serve HTTP: %w", err)
		left--
	}
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), r.cfg.ShutdownTimeout)
	defer cancel()
	for _, s := range servers {
		if err := s.Shutdown(grace); err != nil { // cut off what is still running
			r.log.Warn("requests cut off at shutdown", "error", err)
			giveUp()
			s.Close()
		}
	}
	for ; left > 0; left-- {
		<-ended
	}
	r.running.Wait()
	return failed
}

// Probe does for a moment what Run begins with: it opens the ports and the access log,
// and says what of it cannot be done. A node that would come to serve nothing is better
// off finding out before it becomes a member of a cluster. Zero values of cfg are
// defaults.
func Probe(ctx context.Context, cfg Config) error {
	cfg.applyDefaults()
	log := newAccessLog(cfg)
	err := log.reopen()
	log.close()
	if err != nil {
		return err
	}
	for what, address := range map[string]string{"": cfg.Address, "pprof: ": cfg.DebugAddress} {
		if address == "" {
			continue
		}
		l, err := listen(ctx, address)
		if err != nil {
			return fmt.Errorf("%s%w", what, err)
		}
		l.Close()
	}
	return nil
}

func (r *Router) server(requests context.Context, h http.Handler) *http.Server {
	return &http.Server{
		BaseContext:       func(net.Listener) context.Context { return requests },
		Handler:           h,
		ReadHeaderTimeout: r.cfg.ReadHeaderTimeout,
		ReadTimeout:       r.cfg.ReadTimeout,
		WriteTimeout:      r.cfg.WriteTimeout,
		IdleTimeout:       r.cfg.IdleTimeout,
		MaxHeaderBytes:    64 << 10,
		ErrorLog:          slog.NewLogLogger(r.log.Handler(), slog.LevelDebug),
	}
}

// listen opens a port; the error says what an operator can do about it.
func listen(ctx context.Context, address string) (net.Listener, error) {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", address)
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, fmt.Errorf("listen on %s: %w: another process serves there, stop it or choose another port", address, ErrAddressInUse)
	case errors.Is(err, syscall.EACCES):
		return nil, fmt.Errorf("listen on %s: not permitted: ports below 1024 need privileges, choose another one", address)
	case err != nil:
		return nil, fmt.Errorf("listen on %s: %w", address, err)
	}
	return l, nil
}

func pprofHandler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	return mux
}
