package controller

import (
	"bytes"
	"crypto/rand"
	"encoding/json"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/highwater-io/highwater/journal"
	"github.com/highwater-io/highwater/messages"
	pb "github.com/highwater-io/highwater/messages/highwaterpb"
)

// Exports are few and short: each holds on to the catalog as it was.
const (
	maxExports = 2
	exportIdle = 30 * time.Second
)

// exporter answers snapshot.read: it makes a snapshot for whoever asks, one piece a request.
type exporter struct {
	catalog *journal.Catalog
	sub     *nats.Subscription

	mu   sync.Mutex
	open []*export
}

// export is one snapshot on its way to somebody. The last page is kept, in case its answer is lost.
type export struct {
	id      string
	view    *journal.View
	encoder *journal.Encoder
	page    uint64 // the last one that was made
	data    []byte
	last    bool
	idle    *time.Timer
}

// startExporter opens the subject.
func startExporter(nc *nats.Conn, cluster messages.ClusterName, catalog *journal.Catalog) (*exporter, error) {
	x := &exporter{catalog: catalog}
	sub, err := nc.Subscribe(messages.NewSubjects(cluster).ControlWildcard("snapshot", "read"), x.serve)
	if err != nil {
		return nil, messages.Errorf(messages.CodeUnavailable, "the subject of snapshots: %v", err)
	}
	x.sub = sub
	return x, nil
}

// stop closes the subject and ends every export.
func (x *exporter) stop() {
	_ = x.sub.Unsubscribe() // it fails only where the connection is closed
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, e := range slices.Clone(x.open) {
		x.drop(e)
	}
}

// serve answers one request, in the form that it came in.
func (x *exporter) serve(m *nats.Msg) {
	if m.Reply == "" {
		return
	}
	unmarshal, marshal, form := protojson.Unmarshal, protojson.Marshal, "application/json"
	if m.Header.Get("Content-Type") == "application/protobuf" {
		unmarshal, marshal, form = proto.Unmarshal, proto.Marshal, "application/protobuf"
	}
	q, answer := &pb.SnapshotReadRequest{}, &pb.SnapshotReadResponse{}
	err := unmarshal(m.Data, q)
	if len(m.Data) == 0 {
		err = nil
	}
	if err != nil {
		err = messages.Errorf(messages.CodeInvalidRequest, "the request cannot be read: %v", err)
	} else {
		answer, err = x.read(q)
	}
	header := nats.Header{"Content-Type": {form}}
	if err != nil {
		coded := messages.AsError(err)
		answer = &pb.SnapshotReadResponse{Error: coded.Proto()}
		header.Set("Nats-Service-Error-Code", string(coded.Code))
		header.Set("Nats-Service-Error", string(coded.Code)) // the message is in the body
	}
	data, err := marshal(answer)
	if form == "application/json" && err == nil {
		var compact bytes.Buffer // the printer varies its blanks on purpose
		err = json.Compact(&compact, data)
		data = compact.Bytes()
	}
	if err == nil {
		_ = m.RespondMsg(&nats.Msg{Header: header, Data: data}) // a lost connection; the asker asks again
	}
}

// read returns a page: the next one, or the last one again.
func (x *exporter) read(q *pb.SnapshotReadRequest) (*pb.SnapshotReadResponse, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	e, err := x.find(q)
	if err != nil {
		return nil, err
	}
	switch {
	case q.GetPage() == e.page+1 && !e.last:
		if err := e.next(); err != nil {
			x.drop(e)
			return nil, err
		}
		e.page++
	case q.GetPage() != e.page:
		return nil, messages.Errorf(messages.CodeInvalidRequest, "page %d was asked for, the last one was %d", q.GetPage(), e.page)
	}
	e.idle.Reset(exportIdle)
	return &pb.SnapshotReadResponse{Export: e.id, Page: e.page, Data: e.data, Last: e.last}, nil
}

func (x *exporter) find(q *pb.SnapshotReadRequest) (*export, error) {
	if q.GetExport() == "" {
		return x.begin(q.GetPage())
	}
	for _, e := range x.open {
		if e.id == q.GetExport() {
			return e, nil
		}
	}
	return nil, messages.Errorf(messages.CodeUnknownSession, "there is no such export, or it has been idle for %v", exportIdle).
		WithHint("begin anew")
}

// begin starts an export with its first page.
func (x *exporter) begin(page uint64) (*export, error) {
	if page != 0 {
		return nil, messages.Errorf(messages.CodeInvalidRequest, "page %d of no export was asked for", page)
	}
	if len(x.open) >= maxExports {
		return nil, &messages.Error{Code: messages.CodeBusy, RetryAfterMs: 1000, Message: "other exports of the catalog are going on"}
	}
	v, err := x.catalog.Pin()
	if err != nil {
		return nil, err
	}
	e := &export{id: rand.Text(), view: v, encoder: journal.NewEncoder(v, time.Now().UnixMilli())}
	if err := e.next(); err != nil {
		v.Close()
		return nil, err
	}
	e.idle = time.AfterFunc(exportIdle, func() {
		x.mu.Lock()
		defer x.mu.Unlock()
		x.drop(e)
	})
	x.open = append(x.open, e)
	return e, nil
}

// next makes a page. An export that has made its last one needs no view any more.
func (e *export) next() (err error) {
	if e.data, err = e.encoder.Next(); err != nil {
		return messages.Errorf(messages.CodeInternal, "the snapshot: %v", err)
	}
	e.last = e.encoder.Over()
	if e.last {
		e.view.Close()
	}
	return nil
}

func (x *exporter) drop(e *export) {
	e.idle.Stop()
	e.view.Close()
	x.open = slices.DeleteFunc(x.open, func(other *export) bool { return other == e })
}
