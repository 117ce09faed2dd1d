package broker_test

import (
	"fmt"
	"slices"
	"testing"
)

func TestAcknowledgedRecordsAreOnEveryReplica(t *testing.T) {
	c := newCluster(t, "b1", "b2", "b3")
	p, topic := c.topic(2, "b1", "b2", "b3")
	prod := c.producer(p, topic)
	var want []string
	for i := range 100 {
		v := fmt.Sprintf("r%d", i)
		resp := prod.send(v)
		if resp.GetBaseOffset() != int64(i) || !resp.GetProtected() || resp.GetDuplicate() {
			t.Fatalf("record %d: %v", i, resp)
		}
		want = append(want, v)
	}
	if got := c.values(p, topic); !slices.Equal(got, want) {
		t.Fatalf("read %d records, want %d", len(got), len(want))
	}
	for _, b := range []string{"b1", "b2", "b3"} {
		if st := c.status("b1", p); st.LogEnd != 100 {
			t.Errorf("%s ends at %d", b, st.LogEnd)
		}
	}
}
