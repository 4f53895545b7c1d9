package search

import (
	"testing"
	"testing/synctest"
	"time"
)

func TestPacer(t *testing.T) {
	p := newPacer(0, 100*time.Millisecond)
	if d := p.delay(); d != 25*time.Millisecond {
		t.Errorf("without calls: %v", d)
	}
	for i := range 1000 {
		took := 2 * time.Millisecond
		if i%10 == 0 {
			took = 9 * time.Millisecond
		}
		p.note(took)
	}
	if d := p.delay(); d != 9*time.Millisecond {
		t.Errorf("one of ten takes 9 ms: %v", d)
	}
	for range sampled {
		p.note(10 * time.Microsecond)
	}
	if d := p.delay(); d != time.Millisecond {
		t.Errorf("fast calls: %v", d)
	}
	for range hedgeSaved {
		p.spend()
	}
	if d := p.delay(); d != 50*time.Millisecond {
		t.Errorf("nothing saved: %v", d)
	}
	p.spend()
	for range hedgePart {
		p.earn()
	}
	if d := p.delay(); d != time.Millisecond {
		t.Errorf("ten calls later: %v", d)
	}
	for range 10 * hedgePart * hedgeSaved {
		p.earn()
	}
	if n := p.saved.Load(); n != hedgePart*hedgeSaved {
		t.Errorf("saved %d", n)
	}
}

func TestPrice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := &peer{name: "a"}, &peer{name: "b"}
		a.note(80*time.Millisecond, time.Now())
		b.note(time.Millisecond, time.Now())
		if a.price(time.Now()) <= b.price(time.Now()) {
			t.Error("a slow owner is not dearer")
		}
		b.flying.Store(200)
		if a.price(time.Now()) >= b.price(time.Now()) {
			t.Error("two hundred waiting calls cost nothing")
		}
		b.flying.Store(0)
		dear := a.price(time.Now())
		time.Sleep(10 * time.Second)
		if a.price(time.Now()) > dear/100 {
			t.Error("an old latency is not forgotten")
		}
		a.note(time.Millisecond, time.Now())
		a.note(60*time.Millisecond, time.Now())
		a.note(time.Millisecond, time.Now())
		if p := a.price(time.Now()); p < float64(50*time.Millisecond) {
			t.Errorf("one fast answer makes a slow owner cheap: %v", time.Duration(p))
		}
	})
}
