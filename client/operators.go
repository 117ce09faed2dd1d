package client

import (
	"context"
	"encoding/json"
	"strconv"

	"github.com/nats-io/nats.go"

	"github.com/highwater-io/highwater/messages"
	pb "github.com/highwater-io/highwater/messages/highwaterpb"
)

// CreateTopic makes a topic. The answer comes after the topic is committed (or, with DryRun, validated and placed). Errors:
// INVALID_NAME, INVALID_PARTITIONS, INVALID_REPLICATION_FACTOR, INVALID_MIN_ISR, INVALID_REPLICA_ASSIGNMENT,
// TOPIC_ALREADY_EXISTS, BUSY, UNAVAILABLE.
func (c *Client) CreateTopic(ctx context.Context, r *pb.CreateTopicRequest) (*pb.CreateTopicResponse, error) {
	out := &pb.CreateTopicResponse{}
	if err := c.call(ctx, "create the topic", c.subjects.Control(c.principal, "topic", "create"), r, out); err != nil {
		return nil, err
	}
	return out, nil
}

// DeleteTopic deletes a topic by name. Errors: UNKNOWN_TOPIC, UNKNOWN_TOPIC_ID when the name belongs to another topic by now.
func (c *Client) DeleteTopic(ctx context.Context, r *pb.DeleteTopicRequest) (*pb.DeleteTopicResponse, error) {
	out := &pb.DeleteTopicResponse{}
	if err := c.call(ctx, "delete the topic", c.subjects.Control(c.principal, "topic", "delete"), r, out); err != nil {
		return nil, err
	}
	return out, nil
}

// ForgetBroker ends the registration of a broker that is gone for good, and returns the revision of that. Errors:
// UNKNOWN_BROKER, BROKER_ID_IN_USE while it may be alive, BROKER_NOT_EMPTY while it has replicas.
func (c *Client) ForgetBroker(ctx context.Context, id messages.BrokerID, dryRun bool) (messages.Sequence, error) {
	out := &pb.ForgetBrokerResponse{}
	r := &pb.ForgetBrokerRequest{Name: string(id), DryRun: dryRun}
	err := c.call(ctx, "forget the broker", c.subjects.Control(c.principal, "broker", "forget"), r, out)
	return messages.Sequence(out.GetRevision()), err
}

// Upgrade returns which version of the cluster is finalized, and whether a later one could be.
func (c *Client) Upgrade(ctx context.Context) (messages.UpgradeView, messages.View, error) {
	var u messages.UpgradeView
	v, err := c.view(ctx, "upgrade", nil, &u)
	return u, v, err
}

// FinalizeUpgrade raises the version of the cluster to the one that the request names. It cannot be taken back. The answer has the same version twice where there was nothing to do. Errors: UPGRADE_BLOCKED, with which
// the answer names who is in the way, UNSUPPORTED_VERSION, INVALID_REQUEST for none, and for one below the one that is finalized.
func (c *Client) FinalizeUpgrade(ctx context.Context, r *pb.FinalizeUpgradeRequest) (*pb.FinalizeUpgradeResponse, error) {
	out := &pb.FinalizeUpgradeResponse{}
	err := c.call(ctx, "finalize the upgrade", c.subjects.Control(c.principal, "upgrade", "finalize"), r, out)
	return out, err
}

// Health returns the state of the cluster, with the envelope that says how old it is and who answered.
func (c *Client) Health(ctx context.Context) (messages.HealthView, messages.View, error) {
	var h messages.HealthView
	v, err := c.view(ctx, "health", nil, &h)
	return h, v, err
}

// Controllers lists the controller processes that the one that answers knows of.
func (c *Client) Controllers(ctx context.Context) ([]messages.ControllerView, error) {
	var list []messages.ControllerView
	_, err := c.view(ctx, "controllers", nil, &list)
	return list, err
}

// StepDown has the active controller hand over to a standby, and returns their names. UNAVAILABLE if there is no standby
// or no active one. The answer comes before the successor is active.
func (c *Client) StepDown(ctx context.Context) (from, to string, err error) {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	var m *nats.Msg
	err = patiently(ctx, func() (err error) {
		m, err = c.request(ctx, c.subjects.Control(c.principal, "controller", "step-down"), typeJSON, nil)
		return err
	})
	if err != nil {
		return "", "", messages.Errorf(messages.CodeUnavailable, "no controller answers: %v", err)
	}
	var out struct {
		From  string `json:"from"`
		To    string `json:"to"`
		Error *struct {
			Code    messages.Code `json:"code"`
			Message string        `json:"message"`
		} `json:"error"`
	}
	if err := json.Unmarshal(m.Data, &out); err != nil {
		return "", "", messages.Errorf(messages.CodeInternal, "the answer cannot be read: %v", err)
	}
	if out.Error != nil {
		return "", "", messages.Errorf(out.Error.Code, "%s", out.Error.Message)
	}
	return out.From, out.To, nil
}

// Overview returns health, brokers and settings in one answer.
func (c *Client) Overview(ctx context.Context) (messages.OverviewView, messages.View, error) {
	var o messages.OverviewView
	v, err := c.view(ctx, "overview", nil, &o)
	return o, v, err
}

// Broker returns one broker with the partitions that it holds. UNKNOWN_BROKER if it is not registered.
func (c *Client) Broker(ctx context.Context, id messages.BrokerID) (messages.BrokerView, error) {
	var b messages.BrokerView
	if err := id.Validate(); err != nil {
		return b, err
	}
	_, err := c.view(ctx, "broker."+messages.EscapeToken(string(id)), nil, &b)
	return b, err
}

// Topic returns one topic with its partitions. UNKNOWN_TOPIC if there is none.
func (c *Client) Topic(ctx context.Context, name messages.TopicName) (messages.TopicView, error) {
	var t messages.TopicView
	if err := name.Validate(); err != nil {
		return t, err
	}
	_, err := c.view(ctx, "topic."+messages.EscapeToken(string(name)), nil, &t)
	return t, err
}

// Partition returns one partition. UNKNOWN_TOPIC or UNKNOWN_PARTITION if there is none.
func (c *Client) Partition(ctx context.Context, name messages.TopicName, index int32) (messages.PartitionView, error) {
	var p messages.PartitionView
	if err := name.Validate(); err != nil {
		return p, err
	}
	_, err := c.view(ctx, "partition."+messages.EscapeToken(string(name))+"."+strconv.Itoa(int(index)), nil, &p)
	return p, err
}

// Brokers returns every broker, all pages.
func (c *Client) Brokers(ctx context.Context, q messages.ListQuery) ([]messages.BrokerView, error) {
	return list[messages.BrokerView](ctx, c, "brokers", q)
}

// Topics returns every topic that the query asks for, all pages.
func (c *Client) Topics(ctx context.Context, q messages.ListQuery) ([]messages.TopicView, error) {
	return list[messages.TopicView](ctx, c, "topics", q)
}

// Partitions returns every partition that the query asks for, all pages. Filter keys: topic, broker, rack, state,
// under_replicated, under_min_isr, offline, non_preferred.
func (c *Client) Partitions(ctx context.Context, q messages.ListQuery) ([]messages.PartitionView, error) {
	return list[messages.PartitionView](ctx, c, "partitions", q)
}

func list[T any](ctx context.Context, c *Client, endpoint string, q messages.ListQuery) ([]T, error) {
	var all []T
	for {
		var page []T
		v, err := c.view(ctx, endpoint, q, &page)
		if err != nil {
			return nil, err
		}
		all = append(all, page...)
		if v.Next == nil || *v.Next == "" {
			return all, nil
		}
		q.Cursor = *v.Next
	}
}
