package natsbus

import (
	"strings"

	"github.com/nats-io/nats.go"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/highwater-io/highwater/messages"
	pb "github.com/highwater-io/highwater/messages/highwaterpb"
)

// Headers of requests and answers.
const (
	headerContentType = "Content-Type"
	headerError       = "Nats-Service-Error"
	headerErrorCode   = "Nats-Service-Error-Code"

	typeJSON     = "application/json"
	typeProtobuf = "application/protobuf"
)

var jsonOut = protojson.MarshalOptions{UseProtoNames: true, EmitDefaultValues: true}

// header returns a header in whatever case its sender wrote the key: NATS does not make keys canonical.
func header(h nats.Header, key string) string {
	for k, v := range h {
		if strings.EqualFold(k, key) && len(v) > 0 {
			return v[0]
		}
	}
	return ""
}

// wantsJSON says how a body is written and its answer wanted: by Content-Type, and without one by the habit of the plane.
func wantsJSON(h nats.Header, byDefault bool) (bool, error) {
	kind, _, _ := strings.Cut(header(h, headerContentType), ";")
	switch strings.ToLower(strings.TrimSpace(kind)) {
	case "":
		return byDefault, nil
	case typeJSON:
		return true, nil
	case typeProtobuf, "application/x-protobuf", "application/octet-stream":
		return false, nil
	}
	return byDefault, messages.Errorf(messages.CodeInvalidRequest, "the content type %.64q is not known", kind).
		WithHint("use %s or %s", typeJSON, typeProtobuf)
}

// decode reads a body. Nothing of a body that cannot be read is used, and a field that is not known is an error in JSON:
// there it is most often a slip of the pen. In protobuf it is a newer sender.
func decode(data []byte, json bool, into proto.Message) error {
	if !json {
		if err := proto.Unmarshal(data, into); err != nil {
			return messages.Errorf(messages.CodeInvalidRequest, "the body cannot be read as a protobuf message")
		}
		return nil
	}
	if len(data) == 0 {
		return nil
	}
	if err := protojson.Unmarshal(data, into); err != nil {
		return messages.Errorf(messages.CodeInvalidRequest, "the body cannot be read as JSON: %s", clip(err.Error(), 300))
	}
	return nil
}

// clip bounds a text that may quote what a stranger wrote, and leaves it on one line.
func clip(s string, limit int) string {
	s = strings.ToValidUTF8(strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, s), "?")
	if len(s) <= limit {
		return s
	}
	return strings.ToValidUTF8(s[:limit], "") + "…"
}

// encode writes an answer, with headers for the reader: the content type of JSON, and the error if there is one.
func encode(body proto.Message, json bool) (nats.Header, []byte, error) {
	var h nats.Header
	set := func(k, v string) {
		if h == nil {
			h = nats.Header{}
		}
		h.Set(k, v)
	}
	if failed, ok := body.(interface{ GetError() *pb.Error }); ok && failed.GetError() != nil {
		setErrorHeaders(set, messages.ErrorFromProto(failed.GetError()))
	}
	if !json {
		data, err := proto.Marshal(body)
		return h, data, err
	}
	set(headerContentType, typeJSON)
	data, err := jsonOut.Marshal(body)
	return h, data, err
}

func setErrorHeaders(set func(key, value string), e *messages.Error) {
	set(headerErrorCode, string(e.Code))
	set(headerError, clip(e.Message, 500))
}
