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

var (
	// errMoved ends a request that is out when a newer leader epoch becomes known.
	errMoved = errors.New("the partition has a newer leader")
	// errNoLeader says that the partition has no leader at the moment.
	errNoLeader = errors.New("the partition has no leader")
	// errSilent says that a leader has not answered in time.
	errSilent = errors.New("the leader does not answer")
)

// notSent is why there was no request.
type notSent struct{ error }

// Unwrap returns why.
func (n notSent) Unwrap() error { return n.error }

// attempt is a kind of request to the leader of a partition.
type attempt struct {
	leaders   *leaders
	topic     messages.TopicID
	partition int32
	verb      messages.DataVerb
	timeout   time.Duration // of one try
}

// persist sends a request until it is answered well. After every try that is not, failed judges its error: nil goes on, and
// it may change the request before that. A newer leader is asked at once, everything else after a short pause.
func (a *attempt) persist(ctx context.Context, in proto.Message, out answer, failed func(error) error) error {
	for n := 0; ; n++ {
		now := a.leaders.of(a.partition)
		err := a.try(ctx, now, in, out)
		if err == nil {
			e := messages.ErrorFromProto(out.GetError())
			if e == nil {
				return nil
			}
			err = e
		}
		if err := failed(err); err != nil {
			return err
		}
		if !errors.Is(err, errMoved) {
			a.leaders.pause(ctx, now, backoff(n, err))
		}
	}
}

// try sends the request to the leader that is known now and waits for its answer. It returns errMoved as soon as a newer
// leader epoch is known.
func (a *attempt) try(ctx context.Context, now standing, in, out proto.Message) error {
	if ctx.Err() != nil {
		return notSent{context.Cause(ctx)}
	}
	if now.reign.Err() != nil {
		return notSent{context.Cause(now.reign)}
	}
	if err := current(now.leadership, a.topic); err != nil {
		return notSent{err}
	}
	if now.leadership.GetLeader() == "" {
		return errNoLeader
	}
	ctx, timeout := context.WithTimeoutCause(ctx, a.timeout, errSilent)
	defer timeout()
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	defer context.AfterFunc(now.reign, func() { end(context.Cause(now.reign)) })()
	c := a.leaders.client
	err := c.exchange(ctx, c.subjects.Data(messages.Data{Principal: c.principal, Topic: a.leaders.name, Partition: a.partition,
		LeaderEpoch: messages.LeaderEpoch(now.leadership.GetLeaderEpoch()), Verb: a.verb}), in, out)
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// current refuses a partition that is gone, or that belongs to another topic of the same name by now.
func current(l *pb.Leadership, topic messages.TopicID) error {
	switch {
	case l == nil:
		return messages.Errorf(messages.CodeUnknownPartition, "topic %s has no such partition", topic)
	case l.GetDeleted() || string(l.GetTopicId()) != string(topic[:]):
		return messages.Errorf(messages.CodeUnknownTopicID, "topic %s (%s) has been deleted", l.GetTopic(), topic)
	}
	return nil
}

// final reports whether no other try can mend an error of one.
func final(err error) bool {
	var e *messages.Error
	if !errors.As(err, &e) {
		return false
	}
	switch e.Code {
	case messages.CodeFencedLeaderEpoch, messages.CodeStorageFailed:
		return false // there is, or will be, another leader
	case messages.CodeUnknownTopicID:
		// A leader of a deleted topic may still answer on the subject that it shares with its successor of the same name. What
		// counts is what the controller says.
		return errors.As(err, &notSent{})
	}
	return closed(err) || !e.Retryable()
}

// closed reports whether an error says that there will be no more answers.
func closed(err error) bool {
	var e *messages.Error
	return errors.As(err, &e) && (e == errClientClosed || e == errConnectionClosed)
}

// refused reports whether an error of a try proves that its request has not been carried out: it never left, nobody took
// it, or the leader of this very topic says so.
func refused(err error) bool {
	if errors.As(err, &notSent{}) {
		return true
	}
	var e *messages.Error
	if errors.As(err, &e) {
		return !isCode(e, messages.CodeOutcomeUnknown, messages.CodeInternal, messages.CodeUnavailable, messages.CodeUnknownTopicID)
	}
	return errors.Is(err, errNoLeader) || errors.Is(err, nats.ErrNoResponders) ||
		errors.Is(err, nats.ErrReconnectBufExceeded) || errors.Is(err, nats.ErrConnectionReconnecting)
}

func isCode(err error, codes ...messages.Code) bool {
	for _, c := range codes {
		if errors.Is(err, &messages.Error{Code: c}) {
			return true
		}
	}
	return false
}

// Bounds of the pause between two tries: short, because a new leader is usually there within milliseconds.
const (
	firstPause = 5 * time.Millisecond
	lastPause  = 250 * time.Millisecond
)

// backoff is the pause after try n (from 0), or what the leader asks for if that is longer.
func backoff(n int, err error) time.Duration {
	d := min(firstPause<<min(n, 6), lastPause)
	var e *messages.Error
	if errors.As(err, &e) {
		d = max(d, min(time.Duration(e.RetryAfterMs)*time.Millisecond, lastPause))
	}
	return d
}
