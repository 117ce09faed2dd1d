package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/highwater-io/highwater/client"
	"github.com/highwater-io/highwater/messages"
	pb "github.com/highwater-io/highwater/messages/highwaterpb"
)

type produceFlags struct {
	separator string
	acks      string
	partition int32
	report    bool
	inFlight  int
	timeout   time.Duration
}

func (a *app) produceCommand() *cobra.Command {
	var p produceFlags
	c := &cobra.Command{
		Use: "produce TOPIC", Short: "Write the lines of standard input as records", Args: cobra.ExactArgs(1),
		Long: `Write the lines of standard input as records of a topic. It sends again what was not acknowledged, through failovers, and
exits 0 only when every line was acknowledged. With --report it prints one JSON line for each acknowledged record, in the
order of acknowledgement, as they come.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			acks, ok := map[string]pb.Acks{"all": pb.Acks_ACKS_ALL, "leader": pb.Acks_ACKS_LEADER}[p.acks]
			if !ok {
				return usage("--acks is %q; it must be all or leader", p.acks)
			}
			return a.withClient(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				producer, err := c.NewProducer(ctx, messages.TopicName(args[0]), client.ProducerOptions{
					Acks: acks, MaxInFlight: p.inFlight, DeliveryTimeout: p.timeout})
				if err != nil {
					return err
				}
				return a.produce(ctx, producer, p)
			})
		},
	}
	f := c.Flags()
	f.StringVar(&p.separator, "key-separator", "", "what ends the key at the beginning of a line; empty: lines have no key")
	f.StringVar(&p.acks, "acks", "all", "all: committed, survives failover; leader: stored by the leader only")
	f.Int32Var(&p.partition, "partition", client.ByKey, "partition to write to; -1: by key, evenly without one")
	f.BoolVar(&p.report, "report", false, "print a JSON line with partition and offset for each acknowledged record")
	f.IntVar(&p.inFlight, "in-flight", 10_000, "records that may wait for their acknowledgement")
	f.DurationVar(&p.timeout, "delivery-timeout", 0, "give up a record after this time; 0: never")
	return c
}

type reportLine struct {
	Partition   int32           `json:"partition"`
	Offset      messages.Offset `json:"offset"`
	Value       *string         `json:"value,omitempty"`
	ValueBase64 []byte          `json:"value_base64,omitempty"` // of a value that is no UTF-8
	Duplicate   bool            `json:"duplicate,omitempty"`    // an earlier try had stored it
}

// tally counts results and reports the good ones.
type tally struct {
	app    *app
	report bool

	mu                 sync.Mutex
	acknowledged, lost int
	failed             error // the first
}

func (t *tally) add(r client.Result) {
	t.mu.Lock()
	defer t.mu.Unlock()
	err := r.Err
	if err != nil {
		t.lost++
	} else {
		t.acknowledged++
		if t.report {
			line := reportLine{Partition: r.Partition, Offset: r.Offset, Duplicate: r.Duplicate}
			line.Value, line.ValueBase64 = textOrBytes(r.Record.Value)
			err = writeLine(t.app.out, line)
		}
	}
	if t.failed == nil {
		t.failed = err
	}
}

func (t *tally) outcome(err error) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.lost > 0:
		return fmt.Errorf("%d records were not acknowledged, %d were: %w", t.lost, t.acknowledged, t.failed)
	case err != nil:
		return err
	}
	return t.failed
}

func (a *app) produce(ctx context.Context, producer *client.Producer, p produceFlags) error {
	t := &tally{app: a, report: p.report}
	err := eachLine(ctx, a.in, func(line []byte) error {
		r := client.Record{Partition: p.partition, Value: line}
		if p.separator != "" {
			if key, value, ok := bytes.Cut(line, []byte(p.separator)); ok {
				r.Key, r.Value = key, value
			}
		}
		return producer.Send(ctx, r, t.add)
	})
	if closing := producer.Close(ctx); err == nil {
		err = closing
	}
	return t.outcome(err)
}

// writeLine writes a JSON object on a line, at once.
func writeLine(out io.Writer, v any) error {
	raw, err := json.Marshal(v)
	if err == nil {
		_, err = out.Write(append(raw, '\n'))
	}
	return err
}

// maxLine bounds one line of standard input, in bytes; the cluster may take less.
const maxLine = 8 << 20

// splitLines is a bufio.SplitFunc for lines as they are: a carriage return belongs to its line.
func splitLines(data []byte, atEOF bool) (int, []byte, error) {
	if i := bytes.IndexByte(data, '\n'); i >= 0 {
		return i + 1, data[:i], nil
	}
	if atEOF && len(data) > 0 {
		return len(data), data, nil
	}
	return 0, nil, nil
}

// eachLine calls f with a copy of each line. It stops when the context ends, also while it waits for input.
func eachLine(ctx context.Context, in io.Reader, f func([]byte) error) error {
	lines := make(chan []byte)
	var scanErr error
	go func() {
		defer close(lines)
		s := bufio.NewScanner(in)
		s.Buffer(make([]byte, 64<<10), maxLine)
		s.Split(splitLines)
		for s.Scan() {
			select {
			case lines <- append([]byte{}, s.Bytes()...):
			case <-ctx.Done():
				return
			}
		}
		scanErr = s.Err()
	}()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case line, more := <-lines:
			if !more {
				if errors.Is(scanErr, bufio.ErrTooLong) {
					return messages.Errorf(messages.CodeTooLarge, "a line has more than %d bytes", maxLine)
				}
				return scanErr
			}
			if err := f(line); err != nil {
				return err
			}
		}
	}
}

func (a *app) consumeCommand() *cobra.Command {
	var o client.ConsumeOptions
	var partition int32
	var beginning bool
	var from int64
	var limit int
	c := &cobra.Command{
		Use: "consume TOPIC", Short: "Read committed records", Args: cobra.ExactArgs(1),
		Long: `Read committed records of a topic: the value of each on a line of its own, or with -o json an object a line with partition,
offset, key, value and timestamp (value_base64 and key_base64 where the bytes are no UTF-8). Without a start it reads what
is written from now on.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			o.From = client.FromEnd
			switch {
			case beginning && cmd.Flags().Changed("from-offset"):
				return usage("--from-beginning and --from-offset exclude each other")
			case beginning:
				o.From = client.FromBeginning
			case cmd.Flags().Changed("from-offset"):
				if from < 0 {
					return usage("--from-offset must not be negative")
				}
				o.From = messages.Offset(from)
			}
			if cmd.Flags().Changed("partition") {
				o.Partitions = []int32{partition}
			}
			return a.withClient(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				return a.consume(ctx, c, messages.TopicName(args[0]), o, limit)
			})
		},
	}
	f := c.Flags()
	f.BoolVar(&beginning, "from-beginning", false, "start at the first record that is kept")
	f.Int64Var(&from, "from-offset", 0, "start at this offset of each partition")
	f.Int32Var(&partition, "partition", 0, "read this partition only")
	f.BoolVar(&o.ExitAtEnd, "exit-at-end", false, "end where the committed records ended when the command began")
	f.IntVar(&limit, "max", 0, "end after this many records; 0: no limit")
	return c
}

type consumedRecord struct {
	Partition   int32           `json:"partition"`
	Offset      messages.Offset `json:"offset"`
	Key         *string         `json:"key"`
	KeyBase64   []byte          `json:"key_base64,omitempty"`
	Value       *string         `json:"value,omitempty"`
	ValueBase64 []byte          `json:"value_base64,omitempty"`
	Timestamp   int64           `json:"timestamp"` // milliseconds since 1970
}

// errEnough ends a consume after --max records.
var errEnough = errors.New("enough")

func (a *app) consume(ctx context.Context, c *client.Client, topic messages.TopicName, o client.ConsumeOptions, limit int) error {
	out := bufio.NewWriterSize(a.out, 64<<10)
	seen := 0
	err := c.Consume(ctx, topic, o, func(r client.Fetched) error {
		if err := a.printRecord(out, r); err != nil {
			return err
		}
		if seen++; seen == limit {
			return errEnough
		}
		if !o.ExitAtEnd {
			return out.Flush()
		}
		return nil
	})
	flushed := out.Flush()
	if err == nil || errors.Is(err, errEnough) {
		return flushed
	}
	return err
}

func (a *app) printRecord(out *bufio.Writer, r client.Fetched) error {
	if a.output != "json" && a.output != "yaml" {
		_, err := fmt.Fprintf(out, "%s\n", r.Value)
		return err
	}
	line := consumedRecord{Partition: r.Partition, Offset: r.Offset, Timestamp: r.TimestampUnixMs}
	line.Value, line.ValueBase64 = textOrBytes(r.Value)
	if r.Key != nil {
		line.Key, line.KeyBase64 = textOrBytes(r.Key)
	}
	if a.output == "yaml" { // a stream of documents, each in YAML's flow style
		if _, err := out.WriteString("--- "); err != nil {
			return err
		}
	}
	return writeLine(out, line)
}

func textOrBytes(b []byte) (*string, []byte) {
	if !utf8.Valid(b) {
		return nil, b
	}
	s := string(b)
	return &s, nil
}
