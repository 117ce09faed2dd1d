package client

import (
	"context"
	"errors"
	"time"

	"github.com/nats-io/nats.go"
	"google.golang.org/protobuf/proto"

	"github.com/highwater-io/highwater/messages"
	pb "github.com/highwater-io/highwater/messages/highwaterpb"
)

// errMoved ends a request that is out when a newer leader epoch becomes known.
var errMoved = errors.New("the partition has a newer leader")

// attempt is one request to the leader of a partition.
type attempt struct {
	leaders   *leaders
	topic     messages.TopicID
	partition int32
	verb      messages.DataVerb
	timeout   time.Duration
}

// try sends the request to the leader that is known now and waits for its answer. It returns errMoved as soon as a newer
// leader epoch is known, a coded error for what no other leader would answer otherwise, and any other error for what may
// work with another try.
func (a *attempt) try(ctx context.Context, in, out proto.Message) error {
	current, changed := a.leaders.of(a.partition)
	if err := a.check(current); err != nil {
		return err
	}
	if current.GetLeader() == "" {
		return errNoLeader
	}
	epoch := current.GetLeaderEpoch()
	ctx, cancel := context.WithTimeout(ctx, a.timeout)
	defer cancel()
	ctx, moved := context.WithCancelCause(ctx)
	defer moved(nil)
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		for {
			select {
			case <-ctx.Done():
				return
			case <-changed:
			}
			if current, changed = a.leaders.of(a.partition); current.GetLeaderEpoch() != epoch || a.check(current) != nil {
				moved(errMoved)
				return
			}
		}
	}()
	c := a.leaders.client
	err := c.exchange(ctx, c.subjects.Data(messages.Data{Principal: c.principal, Topic: a.leaders.name, Partition: a.partition,
		LeaderEpoch: messages.LeaderEpoch(epoch), Verb: a.verb}), in, out)
	if err != nil && errors.Is(context.Cause(ctx), errMoved) {
		err = errMoved
	}
	moved(nil)
	<-watched
	return err
}

// errNoLeader says that the partition has no leader at the moment.
var errNoLeader = errors.New("the partition has no leader")

// check refuses a partition that is gone, or that belongs to another topic of the same name by now.
func (a *attempt) check(l *pb.Leadership) error {
	if l == nil {
		return messages.Errorf(messages.CodeUnknownPartition, "topic %s has no partition %d", a.leaders.name, a.partition)
	}
	if l.GetDeleted() || string(l.GetTopicId()) != string(a.topic[:]) {
		return messages.Errorf(messages.CodeUnknownTopicID, "topic %s (%s) has been deleted", a.leaders.name, a.topic)
	}
	return nil
}

// final reports whether an error of try is one that another try cannot mend.
func final(err error) bool {
	var coded *messages.Error
	if !errors.As(err, &coded) {
		return errors.Is(err, nats.ErrConnectionClosed) || errors.Is(err, nats.ErrMaxPayload)
	}
	switch coded.Code {
	case messages.CodeFencedLeaderEpoch, messages.CodeOffsetOutOfRange, messages.CodeUnknownTopicID:
		return coded.Code != messages.CodeFencedLeaderEpoch
	}
	return !coded.Retryable()
}

// backoff is the pause before try n (from 0): short, because a new leader is usually there within milliseconds.
func backoff(n int) time.Duration {
	return min(5*time.Millisecond<<min(n, 6), 250*time.Millisecond)
}
