package controller

import (
	"context"

	"github.com/highwater-io/highwater/actors"
	"github.com/highwater-io/highwater/messages"
	"github.com/highwater-io/highwater/natsbus"
	"github.com/highwater-io/highwater/supervisor"
)

// tree is what the controller and the edge ask of the tree of actors.
type tree interface {
	Tell(to actors.Address, msg actors.Message) error
	Failed() []actors.Address
	Done() <-chan struct{}
	Err() error
	Stop(ctx context.Context) error
}

// edge is what the controller asks of the edge. What the tree asks of it is supervisor.Edge.
type edge interface {
	supervisor.Edge
	Open(ctx context.Context, t natsbus.Tree) error
	StopIntake(ctx context.Context) error
	Close(ctx context.Context) error
	Inquire(what string, q messages.ListQuery) ([]byte, error)
}

var (
	_ tree         = (*supervisor.Tree)(nil)
	_ edge         = (*natsbus.Edge)(nil)
	_ natsbus.Tree = tree(nil)
)
