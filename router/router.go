package router

import (
	"log/slog"
	"net/http"
	"sync"
	"time"
)

// Router serves the HTTP API of one node.
type Router struct {
	cfg     Config
	cluster Cluster
	log     *slog.Logger
	routes  map[string]*route // by path
	metrics *metrics
	access  *accessLog
	names   nameCache
	pool    searcherPool
	large   chan struct{} // a token for every large body in memory
	calls   sync.Pool     // *call
	bodies  sync.Pool     // *request
	peers   peerSet
	started time.Time
	running sync.WaitGroup // requests
}

// route is what is served under one path.
type route struct {
	path      string // as in metrics and the access log
	get       func(*call) error
	post      func(*call) error
	delete    func(*call) error
	maxBody   int64
	uncounted bool // not in the metrics
	stats     routeStats
}

// New returns a router for a cluster. It opens nothing; the configuration must be valid.
// Close gives its searchers back once nothing is served any more; Run does so itself.
func New(cfg Config, cluster Cluster, logger *slog.Logger) *Router {
	cfg.applyDefaults()
	r := &Router{cfg: cfg, cluster: cluster, log: logger, routes: map[string]*route{}, started: time.Now()}
	r.pool.init(cluster, cfg.MaxConcurrentQueries, cfg.QueueTimeout)
	r.large = make(chan struct{}, cfg.MaxLargeBodies)
	r.access = newAccessLog(cfg)
	r.metrics = newMetrics(r)
	for _, p := range cfg.Peers {
		r.peers.add(p)
	}
	r.mount()
	return r
}

// mount fills the route table.
func (r *Router) mount() {
	add := func(rt route) {
		if rt.maxBody == 0 {
			rt.maxBody = MaxBody
		}
		rt.stats = r.metrics.forRoute(&rt)
		r.routes[rt.path] = &rt
	}
	add(route{path: "/health", get: (*call).health})
	add(route{path: "/ready", get: (*call).ready})
	add(route{path: "/status", get: (*call).status})
	add(route{path: "/metrics", get: (*call).serveMetrics, uncounted: true})
	add(route{path: "/register", post: (*call).register})
	add(route{path: "/unregister", post: (*call).unregister})
	add(route{path: "/workers", get: (*call).workers})
	add(route{path: "/query", post: (*call).query, maxBody: MaxQueryBody})
	add(route{path: "/query_by_hash", post: (*call).queryByHash})
	add(route{path: "/explain", get: (*call).explainGet, post: (*call).explainPost, maxBody: MaxQueryBody})
	add(route{path: "/dump", get: (*call).dump})
	add(route{path: "/register_peer", post: (*call).registerPeer})
	add(route{path: "/deregister_peer", post: (*call).deregisterPeer})
	add(route{path: "/peers", get: (*call).listPeers})
	add(route{path: "/reopen_logs", post: (*call).reopenLogs})
	add(route{path: "/members", get: (*call).members})
	add(route{path: "/members/{name}", delete: (*call).removeMember})
	add(route{path: "/members/{name}/leave", post: (*call).leaveMember})
	add(route{path: "/shards", get: (*call).shards})
	add(route{path: "/snapshot", post: (*call).snapshot})
	add(route{path: "/services", get: (*call).services})
	add(route{path: "/global_view", get: (*call).globalView})
	if r.cfg.TestEndpoints {
		add(route{path: "/test/pause_listener", post: (*call).pauseListener})
		add(route{path: "/test/resume_listener", post: (*call).resumeListener})
	}
}

// Handler returns the handler of the whole API.
func (r *Router) Handler() http.Handler { return http.HandlerFunc(r.serve) }

// Close gives the searchers back. No request may be running.
func (r *Router) Close() error {
	r.pool.close()
	return r.access.close()
}
