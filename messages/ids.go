package messages

import (
	"encoding/hex"
	"fmt"
	"strings"
)

// BrokerID names a broker: 1 to 64 of [A-Za-z0-9_-]. The empty id means "none".
type BrokerID string

// TopicName names a topic for people: 1 to 249 of [A-Za-z0-9._-], but not "." or "..". Identity is the TopicID.
type TopicName string

// ClusterName names a cluster in subjects: 1 to 64 of [A-Za-z0-9_-].
type ClusterName string

// IncarnationID is new with every start of a broker process; StorageID is made once for a data folder.
type (
	IncarnationID string
	StorageID     string
)

// RackPath places a broker in failure domains, most significant first: "region/zone/rack", any depth. Empty means
// unlabelled.
type RackPath string

// TopicID identifies a topic for ever; a name that is used again gets another id.
type TopicID [16]byte

// PartitionID identifies one partition.
type PartitionID struct {
	Topic TopicID
	Index int32
}

// Limits of names and sizes, in bytes.
const (
	MaxTopicName   = 249
	MaxBrokerID    = 64
	MaxClusterName = 64
	MaxOpaqueID    = 64
	MaxRackPath    = 256
	MaxRackDepth   = 8
)

// String returns the id as 32 hexadecimal digits.
func (t TopicID) String() string { return hex.EncodeToString(t[:]) }

// Bytes returns the id for a wire message.
func (t TopicID) Bytes() []byte { return append([]byte(nil), t[:]...) }

// IsZero reports whether the id is unset.
func (t TopicID) IsZero() bool { return t == TopicID{} }

// MarshalText writes the id as hexadecimal digits.
func (t TopicID) MarshalText() ([]byte, error) { return []byte(t.String()), nil }

// UnmarshalText reads 32 hexadecimal digits.
func (t *TopicID) UnmarshalText(text []byte) error {
	if len(text) != 2*len(t) {
		return Errorf(CodeInvalidRequest, "a topic id has 32 hexadecimal digits, not %d", len(text))
	}
	if _, err := hex.Decode(t[:], text); err != nil {
		return Errorf(CodeInvalidRequest, "a topic id has hexadecimal digits: %v", err)
	}
	return nil
}

// ParseTopicID reads a topic id from a wire message: exactly 16 bytes, not all zero.
func ParseTopicID(b []byte) (TopicID, error) {
	var t TopicID
	if len(b) != len(t) {
		return t, Errorf(CodeInvalidRequest, "a topic id has 16 bytes, not %d", len(b))
	}
	copy(t[:], b)
	if t.IsZero() {
		return t, Errorf(CodeInvalidRequest, "the topic id is all zero")
	}
	return t, nil
}

// String returns topic id and index, for logs.
func (p PartitionID) String() string { return fmt.Sprintf("%s/%d", p.Topic, p.Index) }

func isNameByte(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_' || c == '-'
}

func validName(what, s string, limit int, dot bool) error {
	if s == "" {
		return Errorf(CodeInvalidName, "the %s name is empty", what)
	}
	if len(s) > limit {
		return Errorf(CodeInvalidName, "the %s name has %d bytes, the limit is %d", what, len(s), limit)
	}
	if s == "." || s == ".." {
		return Errorf(CodeInvalidName, "the %s name must not be %q", what, s)
	}
	for i := 0; i < len(s); i++ {
		if !isNameByte(s[i]) && (!dot || s[i] != '.') {
			return Errorf(CodeInvalidName, "the %s name has the byte %q; allowed are letters, digits, '_', '-'%s",
				what, s[i], map[bool]string{true: ", '.'", false: ""}[dot])
		}
	}
	return nil
}

// Validate returns INVALID_NAME for a name that cannot be a topic's.
func (t TopicName) Validate() error { return validName("topic", string(t), MaxTopicName, true) }

// Validate returns INVALID_NAME for an id that cannot be a broker's.
func (b BrokerID) Validate() error { return validName("broker", string(b), MaxBrokerID, false) }

// Validate returns INVALID_NAME for a name that cannot be a cluster's.
func (c ClusterName) Validate() error { return validName("cluster", string(c), MaxClusterName, false) }

// Validate returns INVALID_NAME for an id that is empty, too long or not of the allowed bytes.
func (i IncarnationID) Validate() error {
	return validName("incarnation", string(i), MaxOpaqueID, false)
}

// Validate returns INVALID_NAME for an id that is empty, too long or not of the allowed bytes.
func (s StorageID) Validate() error { return validName("storage", string(s), MaxOpaqueID, false) }

// ParseRackPath reads a rack label: blanks around each level are trimmed, case is kept, an empty label is "unlabelled". It
// refuses empty levels, control bytes, over-long labels and more than MaxRackDepth levels with INVALID_RACK.
func ParseRackPath(s string) (RackPath, error) {
	if len(s) > MaxRackPath {
		return "", Errorf(CodeInvalidRack, "the rack label has %d bytes, the limit is %d", len(s), MaxRackPath)
	}
	if strings.TrimSpace(s) == "" {
		return "", nil
	}
	levels := strings.Split(s, "/")
	if len(levels) > MaxRackDepth {
		return "", Errorf(CodeInvalidRack, "the rack label has %d levels, the limit is %d", len(levels), MaxRackDepth)
	}
	for i, l := range levels {
		l = strings.TrimSpace(l)
		if l == "" {
			return "", Errorf(CodeInvalidRack, "level %d of the rack label %q is empty", i+1, s)
		}
		for j := 0; j < len(l); j++ {
			if !isNameByte(l[j]) && l[j] != '.' {
				return "", Errorf(CodeInvalidRack, "the rack label has the byte %q; allowed are letters, digits, '.', '_', '-' and '/' between levels", l[j])
			}
		}
		levels[i] = l
	}
	return RackPath(strings.Join(levels, "/")), nil
}

// Levels returns the levels of the path, most significant first; none for an unlabelled broker.
func (r RackPath) Levels() []string {
	if r == "" {
		return nil
	}
	return strings.Split(string(r), "/")
}
