package router

import (
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// metrics is what the router counts itself. Everything about streams and the index is
// read from the cluster at scrape time (see collector).
type metrics struct {
	registry *prometheus.Registry
	handler  http.Handler
	duration *prometheus.HistogramVec
	requests *prometheus.CounterVec
	errors   *prometheus.CounterVec
	unknown  route // stands for every path that is not served

	complete, partial, stale, partialStale, refused prometheus.Counter // answers to queries
}

// routeStats are the children of one route, resolved once: a request looks up no label.
type routeStats struct {
	duration prometheus.Observer
	get      prometheus.Counter
	post     prometheus.Counter
	other    *prometheus.CounterVec // by method
	client   prometheus.Counter     // 4xx
	server   prometheus.Counter     // 5xx
}

func newMetrics(r *Router) *metrics {
	m := &metrics{
		registry: prometheus.NewRegistry(),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "dynamo_kvindexer_request_duration_seconds", Help: "Time from the request's head to its answer.",
			Buckets: prometheus.ExponentialBuckets(0.0001, 2, 20),
		}, []string{"endpoint"}),
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "dynamo_kvindexer_requests_total", Help: "Requests by route and method.",
		}, []string{"endpoint", "method"}),
		errors: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "dynamo_kvindexer_errors_total", Help: "Requests answered with an error.",
		}, []string{"endpoint", "status_class"}),
	}
	answers := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "kvcluster_answers_total", Help: "Answers to queries, by what they claim.",
	}, []string{"completeness"})
	m.complete, m.partial = answers.WithLabelValues("complete"), answers.WithLabelValues("partial")
	m.stale, m.partialStale = answers.WithLabelValues("stale"), answers.WithLabelValues("partial_stale")
	m.refused = answers.WithLabelValues("refused")
	m.registry.MustRegister(m.duration, m.requests, m.errors, answers, &collector{router: r},
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	m.handler = promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{ErrorHandling: promhttp.ContinueOnError})
	m.unknown = unknownRoute
	m.unknown.stats = m.forRoute(&m.unknown)
	return m
}

// answered counts an answer by what it claims.
func (m *metrics) answered(c Completeness) {
	switch {
	case c.Partial && c.Stale:
		m.partialStale.Inc()
	case c.Partial:
		m.partial.Inc()
	case c.Stale:
		m.stale.Inc()
	default:
		m.complete.Inc()
	}
}

// forRoute resolves the children of a route. Only what the route answers to exists from
// the start, so that zero series are those that can become more.
func (m *metrics) forRoute(rt *route) routeStats {
	if rt.uncounted {
		return routeStats{}
	}
	s := routeStats{
		duration: m.duration.WithLabelValues(rt.path),
		other:    m.requests.MustCurryWith(prometheus.Labels{"endpoint": rt.path}),
		client:   m.errors.WithLabelValues(rt.path, "4xx"),
		server:   m.errors.WithLabelValues(rt.path, "5xx"),
	}
	if rt.get != nil {
		s.get = s.other.WithLabelValues(http.MethodGet)
	}
	if rt.post != nil {
		s.post = s.other.WithLabelValues(http.MethodPost)
	}
	return s
}

// methods that get a label value of their own; a client must not invent series.
var methods = map[string]bool{
	"GET": true, "HEAD": true, "POST": true, "PUT": true, "PATCH": true, "DELETE": true, "OPTIONS": true,
}

func (s *routeStats) observe(method string, status int, took time.Duration) {
	s.duration.Observe(took.Seconds())
	switch {
	case method == http.MethodPost && s.post != nil:
		s.post.Inc()
	case method == http.MethodGet && s.get != nil:
		s.get.Inc()
	case methods[method]:
		s.other.WithLabelValues(method).Inc()
	default:
		s.other.WithLabelValues("other").Inc()
	}
	switch {
	case status >= 500:
		s.server.Inc()
	case status >= 400:
		s.client.Inc()
	}
}

// serveMetrics serves GET /metrics.
func (c *call) serveMetrics() error {
	c.code = http.StatusOK
	c.router.metrics.handler.ServeHTTP(c.w, c.r)
	return nil
}

// Registry returns the registry behind /metrics, for a node's own collectors.
func (r *Router) Registry() *prometheus.Registry { return r.metrics.registry }
