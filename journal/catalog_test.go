package journal

import (
	"fmt"
	"runtime"
	"sync"
	"testing"

	"github.com/highwater-io/highwater/messages"
)

func topicWith(id byte, name string, partitions int) []messages.Record {
	out := []messages.Record{&messages.Topic{ID: messages.TopicID{id}, Name: messages.TopicName(name), Partitions: partitions}}
	for i := range partitions {
		out = append(out, partition(id, i, "b1", "b2", "b3"))
	}
	return out
}

func partition(topic byte, i int, replicas ...messages.BrokerID) *messages.Partition {
	return &messages.Partition{ID: messages.PartitionID{Topic: messages.TopicID{topic}, Index: int32(i)}, Replicas: replicas,
		ISR: replicas, Leader: replicas[i%len(replicas)], MinISR: 2, LeaderProven: true}
}

func TestADeletedTopicTakesItsPartitionsAndLateRecordsWithIt(t *testing.T) {
	c := NewCatalog()
	c.Apply(1, append(topicWith(1, "x", 4), topicWith(2, "y", 1)...))
	c.Apply(2, []messages.Record{&messages.TopicDeletion{ID: messages.TopicID{1}, Name: "x"}})
	c.Apply(3, []messages.Record{partition(1, 0, "b1"), topicWith(1, "x", 1)[0]}) // decided before the deletion
	if _, ok := c.TopicByName("x"); ok || c.TopicCount() != 1 || c.Counts().Total != 1 {
		t.Fatalf("%d topics and %d partitions are left", c.TopicCount(), c.Counts().Total)
	}
	if _, n := c.Damaged(); n != 0 {
		t.Errorf("%d records count as damaged", n)
	}
	if _, ok := c.Deletion(messages.TopicID{1}); !ok {
		t.Error("the deletion is not remembered")
	}
	// The name is free for another topic, and the end of the old one's deletion does not touch it.
	c.Apply(4, topicWith(3, "x", 2))
	c.Apply(5, []messages.Record{&messages.TopicDeletionDone{ID: messages.TopicID{1}}})
	if got, ok := c.TopicByName("x"); !ok || got.ID != (messages.TopicID{3}) {
		t.Error("the new topic is not found by its name")
	}
	if _, ok := c.Deletion(messages.TopicID{1}); ok {
		t.Error("the deletion is remembered after its end")
	}
	checkIndex(t, c)
}

func TestBrokersIsASnapshot(t *testing.T) {
	c := NewCatalog()
	c.Apply(1, []messages.Record{&messages.Broker{ID: "b1"}})
	before := c.Brokers()
	c.Apply(2, []messages.Record{&messages.Broker{ID: "b1", Fenced: true}, &messages.Broker{ID: "b2"}})
	c.Apply(3, []messages.Record{&messages.BrokerForgotten{ID: "b1"}})
	if len(before) != 1 || before["b1"].Fenced {
		t.Error("a snapshot has changed")
	}
	if now := c.Brokers(); len(now) != 1 || now["b2"] == nil {
		t.Errorf("the brokers are %v", now)
	}
	same := c.Brokers()
	c.Apply(4, topicWith(1, "x", 3))
	if fmt.Sprintf("%p", same) != fmt.Sprintf("%p", c.Brokers()) {
		t.Error("the brokers were copied without need")
	}
}

func TestCountsSayWhatIsWrongWithPartitions(t *testing.T) {
	c := NewCatalog()
	c.Apply(1, topicWith(1, "x", 3))
	want := messages.PartitionCount{Total: 3, NonPreferred: 2}
	if c.Counts() != want {
		t.Errorf("the counts are %+v", c.Counts())
	}
	p := *partition(1, 0, "b1", "b2", "b3")
	p.ISR, p.LeaderProven = p.ISR[:2], false
	q := *partition(1, 1, "b1", "b2", "b3")
	q.ISR, q.Eligible, q.Leader = []messages.BrokerID{"b1"}, []messages.BrokerID{"b2"}, ""
	c.Apply(2, []messages.Record{&p, &q})
	want = messages.PartitionCount{Total: 3, Offline: 1, UnderMinISR: 1, AtMinISR: 1, UnderReplicated: 2, NonPreferred: 1, Unproven: 1}
	if c.Counts() != want {
		t.Errorf("the counts are %+v", c.Counts())
	}
	if l := c.LoadOf("b3"); l != (Load{Replicas: 3, Leaders: 1, InSync: 1}) {
		t.Errorf("b3 has %+v", l)
	}
	checkIndex(t, c)
}

func TestCallbacksMayUseAndEndTheIteration(t *testing.T) {
	c := NewCatalog()
	c.Apply(1, append(topicWith(1, "y", 3), topicWith(2, "x", 2)...))
	var got []string
	c.Partitions(func(topic *messages.Topic, p *messages.Partition) bool {
		c.PartitionsOf("b1", func(p *messages.Partition) bool {
			c.Apply(c.Applied()+1, nil) // a writer in between must not be blocked by readers
			return false
		})
		c.PartitionsOfTopic(p.ID.Topic, func(*messages.Partition) bool { return false })
		got = append(got, fmt.Sprint(topic.Name, p.ID.Index))
		return len(got) < 4
	})
	if fmt.Sprint(got) != "[x0 x1 y0 y1]" || c.Applied() != 5 {
		t.Errorf("visited %v, applied %d", got, c.Applied())
	}
}

func TestReadersSeeEntriesWholeWhileTheWriterApplies(t *testing.T) {
	c := NewCatalog()
	c.Apply(1, topicWith(1, "x", 8))
	done := make(chan struct{})
	var readers sync.WaitGroup
	for range 4 {
		readers.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				epochs := map[messages.PartitionEpoch]bool{}
				c.PartitionsOfTopic(messages.TopicID{1}, func(p *messages.Partition) bool {
					epochs[p.Epoch] = true
					return true
				})
				n := 0
				c.PartitionsOf("b1", func(*messages.Partition) bool { n++; return true })
				if len(epochs) != 1 || n != 8 || c.Counts().Total != 8 || c.Seen().Sequence == 0 {
					t.Errorf("a reader sees epochs %v and %d partitions of b1", epochs, n)
					return
				}
				c.Load("b2")
				_ = c.Brokers()["b1"]
			}
		})
	}
	for seq := messages.Sequence(2); seq < 300; seq++ {
		records := []messages.Record{&messages.Broker{ID: "b1", Epoch: messages.BrokerEpoch(seq)}}
		for i := range 8 {
			p := *partition(1, i, "b1", "b2", "b3")
			p.Epoch = messages.PartitionEpoch(seq)
			if seq%2 == 0 {
				p.Replicas = []messages.BrokerID{"b2", "b3", "b1"}
			}
			records = append(records, &p)
		}
		c.Apply(seq, records)
	}
	close(done)
	readers.Wait()
	checkIndex(t, c)
}

func TestAnOlderEntryIsABrokenInvariant(t *testing.T) {
	c := NewCatalog()
	c.Apply(5, nil)
	defer func() {
		if recover() == nil {
			t.Error("the catalog went back in time")
		}
	}()
	c.Apply(4, nil)
}

func TestTheCatalogIsLean(t *testing.T) {
	const topics, each = 100, 100
	var all [][]messages.Record
	for i := range topics {
		id := messages.TopicID{1, byte(i)}
		records := []messages.Record{&messages.Topic{ID: id, Name: messages.TopicName(fmt.Sprint("t", i)), Partitions: each}}
		for j := range each {
			r := messages.BrokerID(fmt.Sprint("b", (i+j)%9))
			p := &messages.Partition{ID: messages.PartitionID{Topic: id, Index: int32(j)}, Leader: r,
				Replicas: []messages.BrokerID{r, messages.BrokerID(fmt.Sprint("b", (i+j+1)%9)), messages.BrokerID(fmt.Sprint("b", (i+j+2)%9))}}
			p.ISR = p.Replicas
			records = append(records, p)
		}
		all = append(all, records)
	}
	before := heap()
	c := NewCatalog()
	for i, records := range all {
		c.Apply(messages.Sequence(i+1), records)
	}
	per := int64(heap()-before) / (topics * each)
	if c.Counts().Total != topics*each || per > 512 {
		t.Errorf("%d partitions take %d bytes each beside their records", c.Counts().Total, per)
	}
	t.Logf("%d bytes a partition", per)
	runtime.KeepAlive(all)
}

func heap() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
