package main

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/highwater-io/highwater/internal/freeport"
)

// replicatedStream is a JetStream cluster of three servers in this process with one R3 stream for each partition.
type replicatedStream struct {
	servers []*server.Server
	nc      *nats.Conn
	js      jetstream.JetStream
}

// startReplicatedStream starts the cluster. With always the servers fsync before they acknowledge.
func startReplicatedStream(ctx context.Context, dir string, always bool, streams int) (*replicatedStream, error) {
	r := &replicatedStream{}
	routes, ports, err := freeRoutes(3)
	if err != nil {
		return nil, err
	}
	for i := range 3 {
		o := &server.Options{ServerName: fmt.Sprintf("n%d", i), Host: "127.0.0.1", Port: -1, JetStream: true,
			StoreDir: filepath.Join(dir, fmt.Sprintf("n%d", i)), SyncAlways: always, NoSigs: true, NoLog: true,
			Cluster: server.ClusterOpts{Name: "bench", Host: "127.0.0.1", Port: ports[i]}, Routes: routes}
		s, err := server.NewServer(o)
		if err != nil {
			r.stop()
			return nil, err
		}
		s.Start()
		r.servers = append(r.servers, s)
	}
	if r.nc, err = nats.Connect(r.servers[0].ClientURL(), nats.MaxReconnects(-1), nats.RetryOnFailedConnect(true)); err != nil {
		r.stop()
		return nil, err
	}
	if err := r.createStreams(ctx, streams); err != nil {
		r.stop()
		return nil, err
	}
	return r, nil
}

func freeRoutes(n int) ([]*url.URL, []int, error) {
	var routes []*url.URL
	var ports []int
	for range n {
		l, err := freeport.Listen()
		if err != nil {
			return nil, nil, err
		}
		defer l.Close() // held until all are chosen, so that they differ
		port := l.Addr().(*net.TCPAddr).Port
		ports = append(ports, port)
		routes = append(routes, &url.URL{Scheme: "nats", Host: "127.0.0.1:" + strconv.Itoa(port)})
	}
	return routes, ports, nil
}

func (r *replicatedStream) createStreams(ctx context.Context, n int) error {
	deadline := time.Now().Add(60 * time.Second)
	for i := range n {
		for {
			js, err := jetstream.New(r.nc, jetstream.WithPublishAsyncMaxPending(1<<20), jetstream.WithPublishAsyncTimeout(60*time.Second))
			if err != nil {
				return err
			}
			r.js = js
			bounded, cancel := context.WithTimeout(ctx, 3*time.Second)
			_, err = js.CreateStream(bounded, jetstream.StreamConfig{Name: fmt.Sprintf("S%d", i), Subjects: []string{fmt.Sprintf("bench.%d", i)},
				Replicas: 3, Storage: jetstream.FileStorage})
			cancel()
			if err == nil {
				break
			}
			if time.Now().After(deadline) || ctx.Err() != nil {
				return fmt.Errorf("the JetStream cluster does not form: %w", err)
			}
		}
	}
	return nil
}

func (r *replicatedStream) stop() {
	if r.nc != nil {
		r.nc.Close()
	}
	for _, s := range r.servers {
		s.Shutdown()
		s.WaitForShutdown()
	}
}

// load publishes for a time with a number of messages in flight and returns acknowledged messages a second.
func (r *replicatedStream) load(ctx context.Context, l load) (float64, *durations, error) {
	latencies := &durations{}
	credits := make(chan struct{}, l.inFlight)
	payload := make([]byte, l.size)
	var waits sync.WaitGroup
	var mu sync.Mutex
	var failed error
	acked := 0
	begin := time.Now()
	for i := 0; time.Since(begin) < l.duration && ctx.Err() == nil; i++ {
		credits <- struct{}{}
		sent := time.Now()
		f, err := r.js.PublishAsync(fmt.Sprintf("bench.%d", i%l.partitions), payload)
		if err != nil {
			return 0, nil, err
		}
		waits.Go(func() {
			defer func() { <-credits }()
			select {
			case <-f.Ok():
				latencies.add(time.Since(sent))
				mu.Lock()
				acked++
				mu.Unlock()
			case err := <-f.Err():
				mu.Lock()
				failed = err
				mu.Unlock()
			}
		})
	}
	waits.Wait()
	elapsed := time.Since(begin)
	return float64(acked) / elapsed.Seconds(), latencies, failed
}

// tempDir makes a folder for one benchmark and returns how to remove it.
func tempDir() (string, func(), error) {
	dir, err := os.MkdirTemp("", "highwater-bench-")
	return dir, func() { _ = os.RemoveAll(dir) }, err // a leftover in the temporary folder harms nobody
}
