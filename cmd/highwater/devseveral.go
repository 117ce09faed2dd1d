package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/highwater-io/highwater/client"
	"github.com/highwater-io/highwater/internal/freeport"
	"github.com/highwater-io/highwater/messages"
)

// devController is one of several controllers of dev.
type devController struct {
	Name string `json:"name"`
	PID  int    `json:"pid"`
	URL  string `json:"url"`
	Log  string `json:"log"`
	Role string `json:"role"` // when all were there
}

// devSeveral runs a cluster whose controllers are child processes. Brokers are stopped before them.
func (a *app) devSeveral(ctx context.Context, d devFlags) error {
	began := time.Now()
	group, err := newChildren("controller", d.restart, a.err)
	if err != nil {
		return err
	}
	listen, routes, err := devPorts(d)
	if err != nil {
		return err
	}
	life, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer group.wait()
	defer stop()
	for i, address := range listen {
		name := fmt.Sprintf("c%d", i+1)
		err := group.start(life, child{id: name, rack: "nats://" + address, log: filepath.Join(d.dir, name+".log"), args: []string{"serve", "--child",
			"--name", name, "--cluster", a.cluster, "--data-dir", filepath.Join(d.dir, name), "--listen", address,
			"--cluster-listen", routes[i], "--routes", strings.Join(routes, ",")}})
		if err != nil {
			return err
		}
	}
	over := make(chan struct{})
	go func() {
		group.wait()
		close(over)
	}()
	// The client of this process speaks to this cluster, whatever the environment says.
	a.fixed = &access{url: "nats://" + strings.Join(listen, ",nats://")}
	if err := a.devConnects(ctx, group); err != nil || ctx.Err() != nil {
		return err
	}
	err = a.devBrokers(ctx, d, devRun{began: began, over: over, controllers: group})
	if err == nil && ctx.Err() == nil {
		err = errNotRunning{messages.Errorf(messages.CodeUnavailable, "no controller is left; see their logs in %s", d.dir)}
	}
	return err
}

// devPorts finds free ports for clients and for routes. The first client's is the one that is wanted.
func devPorts(d devFlags) (listen, routes []string, err error) {
	for i := range 2 * d.controllers {
		want := 0
		if i == 0 {
			want = d.port
		}
		l, err := devPort(want)
		if err != nil {
			return nil, nil, errNotRunning{messages.Errorf(messages.CodeUnavailable, "no port for NATS: %v", err).
				WithHint("--port 0 takes a free one")}
		}
		defer l.Close() // all at once, so that no two are the same
		if i < d.controllers {
			listen = append(listen, l.Addr().String())
		} else {
			routes = append(routes, l.Addr().String())
		}
	}
	return listen, routes, nil
}

// devPort listens on a port; 0 is one that is still there when a child is started again.
func devPort(want int) (net.Listener, error) {
	if want == 0 {
		return freeport.Listen()
	}
	return net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", want))
}

// devConnects waits until one of the servers takes connections.
func (a *app) devConnects(ctx context.Context, group *children) error {
	ctx, cancel := context.WithTimeoutCause(ctx, devStart, errors.New("none of the NATS servers answers"))
	defer cancel()
	poll := time.NewTicker(20 * time.Millisecond)
	defer poll.Stop()
	for {
		nc, err := a.connect("highwater-dev")
		if err == nil {
			nc.Close()
			return nil
		}
		select {
		case <-ctx.Done():
			if errors.Is(ctx.Err(), context.Canceled) {
				return nil
			}
			return errNotRunning{messages.Errorf(messages.CodeUnavailable, "%v", context.Cause(ctx))}
		case dead := <-group.ended:
			return errNotRunning{messages.Errorf(messages.CodeUnavailable, "controller %s has ended before all were there; its log is %s", dead.id, dead.log)}
		case <-poll.C:
		}
	}
}

// allControllers reports whether so many controllers are heard, one of them active.
func allControllers(ctx context.Context, c *client.Client, want int) bool {
	if want == 1 {
		return true
	}
	list, err := c.Controllers(ctx)
	return err == nil && len(list) >= want && activeOf(list) != ""
}

// activeOf names the active controller of a list, "" if it has none.
func activeOf(list []messages.ControllerView) string {
	i := slices.IndexFunc(list, func(v messages.ControllerView) bool { return v.Role == "active" })
	if i < 0 {
		return ""
	}
	return list[i].Name
}

// several fills in what there is to say of several controllers.
func (about *devCluster) several(ctx context.Context, c *client.Client, running []devBroker) {
	list, err := c.Controllers(ctx)
	if err == nil {
		about.Active = activeOf(list)
	}
	for _, x := range running {
		role := "standby"
		if x.ID == about.Active {
			role, about.Controller = "active", x.PID
		}
		about.Controllers = append(about.Controllers, devController{Name: x.ID, PID: x.PID, URL: x.Rack, Log: x.Log, Role: role})
	}
}

// watchActive says whenever another controller has become the active one, until the function that it returns is called.
func watchActive(ctx context.Context, c *client.Client, active string, say func(string, ...any)) func() {
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		look := time.NewTicker(200 * time.Millisecond)
		defer look.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-look.C:
			}
			bounded, cancel := context.WithTimeout(ctx, time.Second)
			h, v, err := c.Health(bounded) // answered by the active one only
			cancel()
			if err == nil && v.Role == "active" && h.Controller != active {
				active = h.Controller
				say("controller %s is active now, epoch %d", active, v.ControllerEpoch)
			}
		}
	}()
	return func() {
		cancel()
		<-ended
	}
}
