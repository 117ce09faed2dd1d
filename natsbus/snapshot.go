package natsbus

import (
	"bytes"
	"cmp"
	"encoding/hex"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/highwater-io/highwater/actors"
	"github.com/highwater-io/highwater/messages"
	pb "github.com/highwater-io/highwater/messages/highwaterpb"
)

// snapshot serves one page of what a broker has to hold. The first page asks the broker's outbox for the position of its
// feed before anything is read, so whatever is committed later reaches the broker by the feed, and nothing in between is
// lost. Pages are made by workers: they take longer than a callback may.
func (e *Edge) snapshot(x *exchange, body proto.Message) {
	q := body.(*pb.SnapshotRequest)
	if err := e.currentEpoch(q); err != nil {
		x.refuse(err)
		return
	}
	if q.GetCursor() != "" {
		e.queuePage(x, q, nil)
		return
	}
	id := e.waiting.ask(time.Now(), func(answer proto.Message, err *messages.Error) {
		feed, ok := answer.(*pb.FeedPosition)
		if err == nil && !ok {
			err = messages.Errorf(messages.CodeInternal, "the outbox answered with %T", answer)
		}
		if err != nil {
			x.refuse(err)
			return
		}
		e.queuePage(x, q, feed)
	})
	e.tell(actors.Outbox(messages.BrokerID(q.GetBroker())), actors.FeedStart{Request: id}, id)
}

// queuePage leaves a page to the workers.
func (e *Edge) queuePage(x *exchange, q *pb.SnapshotRequest, feed *pb.FeedPosition) {
	job := func() {
		page, err := e.page(q, feed)
		if err != nil {
			x.refuse(err)
			return
		}
		x.answer(page)
	}
	select {
	case e.snapshots <- job:
	default:
		x.refuse(busy("%d snapshots are waiting already", snapshotQueue))
	}
}

func (e *Edge) serveSnapshots() {
	for {
		select {
		case job := <-e.snapshots:
			job()
		case <-e.life.Done():
			for { // what was admitted is answered
				select {
				case job := <-e.snapshots:
					job()
				default:
					return
				}
			}
		}
	}
}

// currentEpoch refuses a broker that is not registered, or has been registered anew since.
func (e *Edge) currentEpoch(q *pb.SnapshotRequest) error {
	b, ok := e.cfg.Catalog.Brokers()[messages.BrokerID(q.GetBroker())]
	if !ok {
		return messages.Errorf(messages.CodeUnknownBroker, "broker %q is not registered", q.GetBroker())
	}
	if uint64(b.Epoch) != q.GetBrokerEpoch() {
		return messages.Errorf(messages.CodeStaleBrokerEpoch, "broker %q has epoch %d, the request names %d", b.ID, b.Epoch, q.GetBrokerEpoch())
	}
	return nil
}

// cursor is where a page begins: behind a removal, or behind an assignment. All removals come before all assignments.
type cursor struct {
	assignments bool
	after       messages.PartitionID
	start       bool // before the first of its kind
}

func (c cursor) String() string {
	if !c.assignments {
		return "r:" + c.after.Topic.String()
	}
	if c.start {
		return "a"
	}
	return "a:" + c.after.Topic.String() + ":" + strconv.Itoa(int(c.after.Index))
}

func parseCursor(s string) (cursor, error) {
	bad := messages.Errorf(messages.CodeInvalidRequest, "the cursor %q is none that this controller has given", clip(s, 64))
	if s == "" {
		return cursor{start: true}, nil
	}
	parts := strings.Split(s, ":")
	c := cursor{assignments: parts[0] == "a"}
	switch {
	case s == "a":
		c.start = true
		return c, nil
	case parts[0] == "r" && len(parts) == 2:
	case parts[0] == "a" && len(parts) == 3:
		n, err := strconv.ParseInt(parts[2], 10, 32)
		if err != nil || n < 0 {
			return c, bad
		}
		c.after.Index = int32(n)
	default:
		return c, bad
	}
	raw, err := hex.DecodeString(parts[1])
	if err != nil || len(raw) != len(c.after.Topic) {
		return c, bad
	}
	copy(c.after.Topic[:], raw)
	return c, nil
}

// pageBuilder fills a page until it is full. Its first item always fits.
type pageBuilder struct {
	response *pb.SnapshotResponse
	size     int
	items    int
}

func (b *pageBuilder) room(m proto.Message) bool {
	n := proto.Size(m) + 8 // the tag and length of a repeated field
	if b.items > 0 && b.size+n > messages.SnapshotPageBytes {
		return false
	}
	b.size += n
	b.items++
	return true
}

// page makes one page from the catalog.
func (e *Edge) page(q *pb.SnapshotRequest, feed *pb.FeedPosition) (*pb.SnapshotResponse, error) {
	if err := e.currentEpoch(q); err != nil { // it may have been registered anew since the request came in
		return nil, err
	}
	at, err := parseCursor(q.GetCursor())
	if err != nil {
		return nil, err
	}
	b := &pageBuilder{response: &pb.SnapshotResponse{Seen: messages.SeenToProto(e.seen()), Feed: feed}, size: 1024}
	broker := messages.BrokerID(q.GetBroker())
	held, err := e.heldTopics(b, q)
	if err != nil {
		return nil, err
	}
	if !at.assignments {
		if next, full := e.removals(b, broker, held, at); full {
			b.response.Next = next.String()
			return b.response, nil
		}
		at = cursor{assignments: true, start: true}
	}
	if next, full := e.assignments(b, broker, at); full {
		b.response.Next = next.String()
	}
	return b.response, nil
}

// heldTopics reads what a broker's disk holds, and answers the topic ids that nobody has ever heard of.
func (e *Edge) heldTopics(b *pageBuilder, q *pb.SnapshotRequest) (map[messages.TopicID]bool, error) {
	held := make(map[messages.TopicID]bool, len(q.GetHeld()))
	for _, h := range q.GetHeld() {
		id, err := messages.ParseTopicID(h.GetTopicId())
		if err != nil {
			return nil, err
		}
		if held[id] {
			continue
		}
		held[id] = true
		// The deletion is asked for last: between the two questions a topic may become one, but never the other way.
		_, exists := e.cfg.Catalog.Topic(id)
		if _, ending := e.cfg.Catalog.Deletion(id); !exists && !ending {
			b.response.Unknown = append(b.response.Unknown, id.Bytes())
			b.size += len(id) + 4
		}
	}
	return held, nil
}

// removals adds the unfinished deletions that wait for a broker, or that name what it says it holds.
func (e *Edge) removals(b *pageBuilder, broker messages.BrokerID, held map[messages.TopicID]bool, at cursor) (cursor, bool) {
	next, full := at, false
	e.cfg.Catalog.Deletions(func(d *messages.TopicDeletion) bool {
		if !at.start && bytes.Compare(d.ID[:], at.after.Topic[:]) <= 0 {
			return true
		}
		if !slices.Contains(d.Pending, broker) && !held[d.ID] {
			return true
		}
		r := removalOf(d)
		if !b.room(r) {
			full = true
			return false
		}
		b.response.Removals = append(b.response.Removals, r)
		next = cursor{after: messages.PartitionID{Topic: d.ID}}
		return true
	})
	return next, full
}

func removalOf(d *messages.TopicDeletion) *pb.Removal {
	epochs := make([]int64, len(d.Epochs))
	for i, e := range d.Epochs {
		epochs[i] = int64(e)
	}
	return &pb.Removal{TopicId: d.ID.Bytes(), Topic: string(d.Name), PartitionEpochs: epochs}
}

// assignments adds the partitions of a broker in the order of topic id and index.
func (e *Edge) assignments(b *pageBuilder, broker messages.BrokerID, at cursor) (cursor, bool) {
	var all []*messages.Partition
	e.cfg.Catalog.PartitionsOf(broker, func(p *messages.Partition) bool {
		if at.start || comparePartitions(p.ID, at.after) > 0 {
			all = append(all, p)
		}
		return true
	})
	slices.SortFunc(all, func(p, q *messages.Partition) int { return comparePartitions(p.ID, q.ID) })
	next := at
	for _, p := range all {
		topic, ok := e.cfg.Catalog.Topic(p.ID.Topic)
		if !ok {
			continue // deleted meanwhile: the removal comes by the feed
		}
		a := messages.AssignmentOf(topic.Name, p)
		if !b.room(a) {
			return next, true
		}
		b.response.Assignments = append(b.response.Assignments, a)
		next = cursor{assignments: true, after: p.ID}
	}
	return next, false
}

func comparePartitions(a, b messages.PartitionID) int {
	return cmp.Or(bytes.Compare(a.Topic[:], b.Topic[:]), cmp.Compare(a.Index, b.Index))
}
