package controller

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/highwater-io/highwater/messages"
)

func TestADiskThatTakesNoWritesEndsTheProcess(t *testing.T) {
	never := make(chan struct{})
	for name, c := range map[string]struct {
		write func(n int) error
		ends  time.Duration // 0: it does not
	}{
		"every write takes a while":    {write: func(int) error { time.Sleep(4500 * time.Millisecond); return nil }},
		"the third write never ends":   {write: func(n int) error { return hang(n == 3, never) }, ends: 8 * time.Second},
		"the fourth write is an error": {write: func(n int) error { return broken(n == 4) }, ends: 4 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				stop, n, began := make(chan struct{}), 0, time.Now()
				var ended time.Duration
				never = make(chan struct{})
				w := diskWatch{limit: 5 * time.Second, write: func() error { n++; return c.write(n) }, ended: func(err error) {
					if messages.CodeOf(err) != messages.CodeUnavailable || ended != 0 {
						t.Errorf("%v, after %v", err, ended)
					}
					ended = time.Since(began)
				}}
				go w.run(stop)
				time.Sleep(time.Minute)
				close(stop)
				close(never)
				time.Sleep(time.Minute) // the last write ends too
				synctest.Wait()         // which the race detector takes for what it is
				if ended != c.ends {
					t.Errorf("ended after %v, want %v", ended, c.ends)
				}
			})
		})
	}
}

func hang(when bool, never chan struct{}) error {
	if when {
		<-never
	}
	return nil
}

func broken(when bool) error {
	if when {
		return errors.New("input/output error")
	}
	return nil
}
