//go:build highwater_next

package controller

import (
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/highwater-io/highwater/actors"
	"github.com/highwater-io/highwater/actors/registry"
	"github.com/highwater-io/highwater/messages"
)

// next writes forms that the release does not know, so that tests of upgrades have something to lose: at any version each new
// topic and partition gets a further field, and each new topic a record of a further kind, which an earlier build may carry
// along; from version 2 on, the record of the topic needs a reader of that version.
type next struct{ registry.Machine }

func nextForms(m registry.Machine) next { return next{m} }

// What the next release writes, in the numbers of the wire.
const (
	nextField = 900 // of TopicRecord and PartitionRecord
	nextKind  = 42  // of Record; its key is the topic's id
)

// Step decides as the release does, and adds to it.
func (n next) Step(env actors.Env, s *registry.State, msg actors.Message) (*registry.State, actors.Effects) {
	s, fx := n.Machine.Step(env, s, msg)
	version := env.Cluster.Identity().FinalizedVersion()
	for i, r := range fx.Records {
		switch r := r.(type) {
		case *messages.Topic:
			c := *r
			c.Unknown = messages.NextFields(note(nextField, "topic"))
			fx.Records[i] = &c
			kind := &messages.UnknownRecord{Kind: nextKind, Key: string(r.ID.Bytes()), Fields: note(nextKind, string(r.Name))}
			if version > messages.FirstVersion {
				kind.MinReader = version
			}
			fx.Records = append(fx.Records, kind)
		case *messages.Partition:
			c := *r
			c.Unknown = messages.NextFields(note(nextField, "partition"))
			fx.Records[i] = &c
		}
	}
	return s, fx
}

func note(number protowire.Number, text string) []byte {
	return protowire.AppendString(protowire.AppendTag(nil, number, protowire.BytesType), text)
}
