package natsbus

import (
	"encoding/json"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/highwater-io/highwater/messages"
	pb "github.com/highwater-io/highwater/messages/highwaterpb"
)

// filler counts the bytes of a page. Its first item always fits.
type filler struct {
	budget int
	used   int
	items  int
}

// take returns an item as JSON and whether it still fits.
func (f *filler) take(item any) (json.RawMessage, bool) {
	raw, err := json.Marshal(item)
	if err != nil {
		return nil, true // left out: the views have nothing that cannot be written
	}
	return raw, f.room(len(raw) + 1)
}

func (f *filler) room(n int) bool {
	if f.items > 0 && f.used+n > f.budget {
		return false
	}
	f.used += n
	f.items++
	return true
}

// fit returns as many items as fit, and how many do not.
func fit[T any](f *filler, all []T) ([]T, int) {
	for i, item := range all {
		if _, fits := f.take(item); !fits {
			return all[:i], len(all) - i
		}
	}
	return all, 0
}

// lister fills one page of a list: items in order, from behind the cursor, until limit or budget are reached.
type lister struct {
	filler
	limit int
	data  []json.RawMessage
	last  string // the key of the last item taken
	next  string // set when there is more
}

func newLister(q *inquiry) *lister {
	return &lister{filler: filler{budget: q.budget}, limit: q.query.Limit, data: []json.RawMessage{}}
}

// add takes an item with its key and reports whether the page wants more.
func (l *lister) add(key string, item any) bool {
	if len(l.data) == l.limit {
		l.next = l.last
		return false
	}
	raw, fits := l.take(item)
	if !fits {
		l.next = l.last
		return false
	}
	if raw != nil {
		l.data = append(l.data, raw)
	}
	l.last = key
	return true
}

// filters checks that only known keys are asked for and reads the yes-or-no ones.
func filters(given map[string]string, texts, flags []string) (map[string]bool, error) {
	out := map[string]bool{}
	for k, v := range given {
		switch {
		case slices.Contains(texts, k):
		case slices.Contains(flags, k):
			b, err := strconv.ParseBool(v)
			if err != nil {
				return nil, messages.Errorf(messages.CodeInvalidRequest, "the filter %s is true or false, not %q", k, clip(v, 64))
			}
			out[k] = b
		default:
			return nil, messages.Errorf(messages.CodeInvalidRequest, "the filter %q is not known", clip(k, 64)).
				WithHint("known here: %s", strings.Join(append(slices.Clone(texts), flags...), ", "))
		}
	}
	return out, nil
}

// inRack reports whether a rack is the one that is asked for, or below it.
func inRack(have messages.RackPath, asked string) bool {
	return string(have) == asked || strings.HasPrefix(string(have), asked+"/")
}

// viewBrokers serves mon.v1.brokers. Filters: state, rack.
func (e *Edge) viewBrokers(q *inquiry) (any, string, error) {
	if _, err := filters(q.query.Filter, []string{"state", "rack"}, nil); err != nil {
		return nil, "", err
	}
	state, byState := q.query.Filter["state"]
	rack, byRack := q.query.Filter["rack"]
	l, loads := newLister(q), e.health.of(e).loads
	for _, b := range sortedBrokers(e.cfg.Catalog.Brokers()) {
		if string(b.ID) <= q.query.Cursor || byState && e.brokerState(b) != state || byRack && !inRack(b.Rack, rack) {
			continue
		}
		if !l.add(string(b.ID), e.brokerView(b, loads[b.ID])) {
			break
		}
	}
	return l.data, l.next, nil
}

// viewTopics serves mon.v1.topics. Filter: topic.
func (e *Edge) viewTopics(q *inquiry) (any, string, error) {
	if _, err := filters(q.query.Filter, []string{"topic"}, nil); err != nil {
		return nil, "", err
	}
	l := newLister(q)
	e.eachTopic(q, func(t *messages.Topic) bool {
		return string(t.Name) <= q.query.Cursor || l.add(string(t.Name), e.topicView(t))
	})
	return l.data, l.next, nil
}

// eachTopic calls f for every topic, or for the one that the filter names.
func (e *Edge) eachTopic(q *inquiry, f func(*messages.Topic) bool) {
	name, one := q.query.Filter["topic"]
	if !one {
		e.cfg.Catalog.Topics(f)
		return
	}
	if t, ok := e.cfg.Catalog.TopicByName(messages.TopicName(name)); ok {
		f(t)
	}
}

// place is a position in the lists that are ordered by topic name and partition: "<topic>/<partition>".
type place struct {
	topic     messages.TopicName
	partition int32
}

func (p place) String() string { return string(p.topic) + "/" + strconv.Itoa(int(p.partition)) }

// parsePlace reads a cursor. The empty one is before everything.
func parsePlace(s string) (place, error) {
	if s == "" {
		return place{partition: -1}, nil
	}
	name, index, _ := strings.Cut(s, "/")
	n, err := strconv.ParseInt(index, 10, 32)
	if err != nil || n < 0 {
		return place{}, messages.Errorf(messages.CodeInvalidRequest, "the cursor %q is none that this service has given", clip(s, 64))
	}
	return place{topic: messages.TopicName(name), partition: int32(n)}, nil
}

// eachPlace calls f for every partition behind the cursor, of all topics or of the one that the filter names.
func (e *Edge) eachPlace(q *inquiry, f func(place, *messages.Topic, *messages.Partition) bool) error {
	after, err := parsePlace(q.query.Cursor)
	if err != nil {
		return err
	}
	e.eachTopic(q, func(t *messages.Topic) bool {
		if t.Name < after.topic {
			return true
		}
		more := true
		e.cfg.Catalog.PartitionsOfTopic(t.ID, func(p *messages.Partition) bool {
			if t.Name == after.topic && p.ID.Index <= after.partition {
				return true
			}
			more = f(place{t.Name, p.ID.Index}, t, p)
			return more
		})
		return more
	})
	return nil
}

// viewPartitions serves mon.v1.partitions. Filters: topic, broker, rack, state, and the flags of partitionFlags.
func (e *Edge) viewPartitions(q *inquiry) (any, string, error) {
	flags, err := filters(q.query.Filter, []string{"topic", "broker", "rack", "state"}, partitionFlags)
	if err != nil {
		return nil, "", err
	}
	brokers, violates := e.cfg.Catalog.Brokers(), e.health.violates(e)
	l := newLister(q)
	err = e.eachPlace(q, func(at place, t *messages.Topic, p *messages.Partition) bool {
		if !wanted(q.query.Filter, flags, p, brokers) {
			return true
		}
		return l.add(at.String(), partitionView(t, p, violates))
	})
	return l.data, l.next, err
}

// partitionFlags are the filters that are true or false.
var partitionFlags = []string{"under_replicated", "under_min_isr", "offline", "non_preferred"}

// wanted reports whether a partition passes every filter.
func wanted(filter map[string]string, flags map[string]bool, p *messages.Partition, brokers map[messages.BrokerID]*messages.Broker) bool {
	if b, ok := filter["broker"]; ok && !slices.Contains(p.Replicas, messages.BrokerID(b)) {
		return false
	}
	if s, ok := filter["state"]; ok && partitionState(p) != s {
		return false
	}
	if rack, ok := filter["rack"]; ok && !slices.ContainsFunc(p.Replicas, func(b messages.BrokerID) bool {
		return brokers[b] != nil && inRack(brokers[b].Rack, rack)
	}) {
		return false
	}
	is := map[string]bool{
		"under_replicated": len(p.ISR) < len(p.Replicas),
		"under_min_isr":    len(p.ISR) < messages.EffectiveMinISR(p.MinISR, len(p.Replicas)),
		"offline":          p.Leader == "",
		"non_preferred":    p.Leader != "" && p.Leader != p.Replicas[0],
	}
	for k, want := range flags {
		if is[k] != want {
			return false
		}
	}
	return true
}

// viewLeadership serves mon.v1.leadership, the snapshot for clients: in JSON a list of leaderships in the envelope, in
// protobuf a LeadershipPage. Filter: topic.
func (e *Edge) viewLeadership(q *inquiry) (any, string, error) {
	if _, err := filters(q.query.Filter, []string{"topic"}, nil); err != nil {
		return nil, "", err
	}
	l := newLister(q)
	page := &pb.LeadershipPage{}
	err := e.eachPlace(q, func(at place, t *messages.Topic, p *messages.Partition) bool {
		seen := e.seen()
		one := messages.LeadershipOf(t.Name, p, seen)
		if q.json {
			raw, err := jsonOut.Marshal(one)
			return err != nil || l.add(at.String(), json.RawMessage(raw))
		}
		if len(page.Partitions) == l.limit || !l.room(proto.Size(one)+8) {
			l.next = l.last
			return false
		}
		page.Partitions = append(page.Partitions, one)
		l.last = at.String()
		return true
	})
	if q.json {
		return l.data, l.next, err
	}
	return page, l.next, err
}
