package registry

import (
	"slices"

	"github.com/highwater-io/highwater/messages"
	pb "github.com/highwater-io/highwater/messages/highwaterpb"
)

// removed takes a broker's word that it holds nothing of some topic ids. Ids of which no deletion waits for it are fine: the
// confirmation came twice. If there is more than one entry should take, part of it is done and the answer is BUSY.
func (t *step) removed(principal string, r *pb.RemovedRequest) *messages.Error {
	if err := speaksFor(principal, r.GetBroker()); err != nil {
		return err
	}
	id := messages.BrokerID(r.GetBroker())
	if b := t.brokers[id]; b == nil || uint64(b.Epoch) != r.GetBrokerEpoch() {
		return errStale(b, r.GetBrokerEpoch())
	}
	if err := t.doubt(); err != nil {
		return err
	}
	ids, err := parseTopicIDs(r.GetTopicIds())
	if err != nil {
		return err
	}
	done := map[messages.TopicID]struct{}{}
	budget := maxEpochsRewritten
	for _, topic := range ids {
		d, ok := t.env.Cluster.Deletion(topic)
		if _, twice := done[topic]; twice || !ok || !slices.Contains(d.Pending, id) {
			continue
		}
		if budget <= 0 {
			return busy("the confirmation is taken in part; %d topic ids are confirmed", len(done))
		}
		budget -= len(d.Epochs) + 1
		done[topic] = struct{}{}
		t.strike(d, func(pending messages.BrokerID) bool { return pending == id || t.brokers[pending] == nil })
	}
	return nil
}

func parseTopicIDs(in [][]byte) ([]messages.TopicID, *messages.Error) {
	if len(in) > messages.MaxRemovedTopics {
		return nil, messages.Errorf(messages.CodeTooLarge, "the request confirms %d topic ids, the limit is %d",
			len(in), messages.MaxRemovedTopics)
	}
	out := make([]messages.TopicID, len(in))
	for i, b := range in {
		id, err := messages.ParseTopicID(b)
		if err != nil {
			return nil, messages.AsError(err)
		}
		out[i] = id
	}
	return out, nil
}

func busy(format string, args ...any) *messages.Error {
	err := messages.Errorf(messages.CodeBusy, format, args...)
	err.RetryAfterMs = retryAfterMs
	return err
}
