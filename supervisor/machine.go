package supervisor

import (
	"github.com/highwater-io/highwater/actors"
)

// Factory makes the actors of one kind. Host makes factories.
type Factory struct {
	// make returns a new, unloaded actor body.
	make func() body
}

// Host returns a factory of actors that run the machine. The machine is shared by all of them and must keep nothing of
// its own that changes; what changes is the state that Load and Step return.
func Host[S any](m actors.Machine[S]) Factory {
	return Factory{make: func() body { return &stateful[S]{machine: m} }}
}

// body is a machine with the state of one actor, its type forgotten.
type body interface {
	// load replaces the state by what is committed.
	load(env actors.Env, self actors.Address) error
	// step decides on a message and keeps the new state, which is a proposal until the records of the effects are
	// committed.
	step(env actors.Env, msg actors.Message) actors.Effects
	// discard forgets the state.
	discard()
}

type stateful[S any] struct {
	machine actors.Machine[S]
	state   S
}

func (b *stateful[S]) load(env actors.Env, self actors.Address) error {
	state, err := b.machine.Load(env, self)
	if err != nil {
		return err
	}
	b.state = state
	return nil
}

func (b *stateful[S]) step(env actors.Env, msg actors.Message) actors.Effects {
	state, effects := b.machine.Step(env, b.state, msg)
	b.state = state
	return effects
}

func (b *stateful[S]) discard() {
	var nothing S
	b.state = nothing
}
