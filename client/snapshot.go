package client

import (
	"context"
	"fmt"
	"io"

	"github.com/highwater-io/highwater/messages"
	pb "github.com/highwater-io/highwater/messages/highwaterpb"
)

// snapshotTries is how often a page is asked for: a lost answer is given again.
const snapshotTries = 3

// ReadSnapshot has the active controller make a snapshot of its catalog, and writes it as a file of snapshots is. It does not
// look at what it writes; journal.CheckSnapshot does. Errors: BUSY while others do the same, UNAVAILABLE, and the writer's.
func (c *Client) ReadSnapshot(ctx context.Context, to io.Writer) error {
	q := &pb.SnapshotReadRequest{}
	for {
		page, err := c.snapshotPage(ctx, q)
		if err != nil {
			return err
		}
		if _, err := to.Write(page.GetData()); err != nil {
			return fmt.Errorf("writing page %d of the snapshot: %w", q.GetPage(), err)
		}
		if page.GetLast() {
			return nil
		}
		q.Export, q.Page = page.GetExport(), page.GetPage()+1
	}
}

func (c *Client) snapshotPage(ctx context.Context, q *pb.SnapshotReadRequest) (*pb.SnapshotReadResponse, error) {
	tries := snapshotTries
	if q.GetExport() == "" {
		tries = 1 // an answer that is lost has left an export behind
	}
	for {
		out := &pb.SnapshotReadResponse{}
		err := c.call(ctx, "read the snapshot", c.subjects.Control(c.principal, "snapshot", "read"), q, out)
		if err == nil && (out.GetPage() != q.GetPage() || q.GetExport() != "" && out.GetExport() != q.GetExport()) {
			return nil, messages.Errorf(messages.CodeInternal, "page %d of the snapshot was answered with page %d", q.GetPage(), out.GetPage())
		}
		if tries--; err == nil || tries == 0 || messages.CodeOf(err) != messages.CodeUnavailable || ctx.Err() != nil {
			return out, err
		}
	}
}
