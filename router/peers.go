package router

import (
	"net/http"
	"slices"
	"sync"
)

// peerSet is a list of base URLs. Like Dynamo's it is only kept and shown: nothing is
// ever synchronised with a peer. (A cluster of kvcluster nodes needs no peers, and a
// dump carries no cursor, so recovery from one could not be exact.)
type peerSet struct {
	mu struct {
		sync.Mutex
		urls []string
	}
}

func (p *peerSet) add(url string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !slices.Contains(p.mu.urls, url) {
		p.mu.urls = append(p.mu.urls, url)
	}
}

func (p *peerSet) remove(url string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	i := slices.Index(p.mu.urls, url)
	if i < 0 {
		return false
	}
	p.mu.urls = slices.Delete(p.mu.urls, i, i+1)
	return true
}

func (p *peerSet) list() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.mu.urls)
}

// registerPeer serves POST /register_peer.
func (c *call) registerPeer() error {
	url, err := c.peerURL()
	if err != nil {
		return err
	}
	c.router.peers.add(url)
	return c.ok(http.StatusCreated)
}

// deregisterPeer serves POST /deregister_peer.
func (c *call) deregisterPeer() error {
	url, err := c.peerURL()
	if err != nil {
		return err
	}
	if !c.router.peers.remove(url) {
		return &apiError{status: http.StatusNotFound, text: "peer not found"}
	}
	return c.ok(http.StatusOK)
}

func (c *call) peerURL() (string, error) {
	q, err := c.parse(peerBody, false)
	if err != nil {
		return "", err
	}
	return q.url, q.require(fURL)
}

// listPeers serves GET /peers.
func (c *call) listPeers() error {
	b := append(c.out[:0], '[')
	for _, u := range c.router.peers.list() {
		b = appendString(comma(b), u)
	}
	c.out = append(b, ']')
	c.json(http.StatusOK, c.out)
	return nil
}
