package controller

import (
	"context"
	"encoding/json"
	"time"

	"github.com/highwater-io/highwater/messages"
)

// The active controller looks soon, as long as something is to be done, and otherwise regularly, where the leaders of its
// streams are.
const (
	apartRetry = 300 * time.Millisecond
	apartEvery = 3 * time.Second
)

// keepApart moves the leaders of the streams away from this process's own server, the journal's first, so that one death does
// not cost both. It is a matter of speed only, so failures are of no account.
func (c *Controller) keepApart(ctx context.Context) {
	if c.server == nil {
		return
	}
	streams := []string{messages.JournalStream(c.cfg.Cluster), messages.LeadershipStream(c.cfg.Cluster),
		"OBJ_" + messages.SnapshotBucket(c.cfg.Cluster)}
	for wait := apartRetry; ; {
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
		wait = apartEvery
		for _, stream := range streams {
			if c.leadsStream(ctx, stream) {
				wait = apartRetry
				c.moveStream(ctx, stream)
			}
		}
	}
}

// streamLimit bounds a question about a stream.
const streamLimit = 2 * time.Second

// leadsStream reports whether the leader of a stream is known to be at this process's server.
func (c *Controller) leadsStream(ctx context.Context, stream string) bool {
	ctx, cancel := context.WithTimeout(ctx, streamLimit)
	defer cancel()
	info, err := c.conns.edge.RequestWithContext(ctx, "$JS.API.STREAM.INFO."+stream, nil)
	if err != nil {
		return false
	}
	var at struct {
		Cluster struct {
			Leader string `json:"leader"`
		} `json:"cluster"`
	}
	return json.Unmarshal(info.Data, &at) == nil && at.Cluster.Leader == c.cfg.Name
}

// moveStream asks for another leader of a stream, preferably at the process that would take over.
func (c *Controller) moveStream(ctx context.Context, stream string) {
	to := c.members.successor()
	if to == "" {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, streamLimit)
	defer cancel()
	body, _ := json.Marshal(map[string]any{"placement": map[string]string{"preferred": to}}) // strings can be written
	_, err := c.conns.edge.RequestWithContext(ctx, "$JS.API.STREAM.LEADER.STEPDOWN."+stream, body)
	c.log.Debug().Err(err).Str("stream", stream).Str("to", to).Msg("moving the leader of the stream to another process")
}

// unblock asks the leader of the journal's stream to give way when it does not take an entry for too long. One that cannot even
// hear that is replaced by the other servers of their own accord.
func (c *Controller) unblock(ctx context.Context) {
	look := time.NewTicker(storeSlow)
	defer look.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-look.C:
		}
		if c.store.waiting() < storeSlow {
			continue
		}
		stream := messages.JournalStream(c.cfg.Cluster)
		c.log.Warn().Str("stream", stream).Msg("the leader of the journal's stream does not answer; asking for another one")
		bounded, cancel := context.WithTimeout(ctx, streamLimit)
		_, _ = c.conns.edge.RequestWithContext(bounded, "$JS.API.STREAM.LEADER.STEPDOWN."+stream, nil) // the next append shows it
		cancel()
	}
}
