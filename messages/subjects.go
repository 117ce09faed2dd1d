package messages

import (
	"strconv"
	"strings"
)

// Subject root: hw.<cluster>. The plane is the third token, its version the fourth. Tokens that come from people are
// escaped: every byte outside [A-Za-z0-9_-] is written =XX with upper-case hexadecimal digits, the empty token as "=".
const subjectRoot = "hw"

// Planes of the subject tree.
const (
	planeBroker      = "brk.v1"
	planeAssignments = "asg.v1"
	planeLeadership  = "lead.v1"
	planeControl     = "ctl.v1"
	planeMonitor     = "mon.v1"
	planeData        = "dat.v1"
	planeReplication = "rep.v1"
	planeJournal     = "jnl.v1"
	planeControllers = "ctr.v1"
)

// BrokerVerb is a request of a broker to the active controller.
type BrokerVerb string

// The verbs of the broker plane.
const (
	VerbRegister  BrokerVerb = "register"
	VerbHeartbeat BrokerVerb = "heartbeat"
	VerbISR       BrokerVerb = "isr"
	VerbOffsets   BrokerVerb = "offsets"
	VerbReady     BrokerVerb = "ready"
	VerbSnapshot  BrokerVerb = "snapshot"
	VerbRemoved   BrokerVerb = "removed"
)

// DataVerb is a request of a client to a leader.
type DataVerb string

// The verbs of the data plane.
const (
	VerbProduce DataVerb = "produce"
	VerbFetch   DataVerb = "fetch"
)

// Subjects builds and parses the subjects of one cluster.
type Subjects struct{ root string }

// NewSubjects returns the subjects of a cluster; the name must be valid.
func NewSubjects(c ClusterName) Subjects {
	return Subjects{root: subjectRoot + "." + EscapeToken(string(c))}
}

func (s Subjects) join(plane string, tokens ...string) string {
	var b strings.Builder
	b.WriteString(s.root)
	b.WriteByte('.')
	b.WriteString(plane)
	for _, t := range tokens {
		b.WriteByte('.')
		b.WriteString(t)
	}
	return b.String()
}

// split returns the tokens behind the plane, or false if the subject is not of this cluster and plane or has another
// number of tokens.
func (s Subjects) split(plane, subject string, n int) ([]string, bool) {
	rest, ok := strings.CutPrefix(subject, s.root+"."+plane+".")
	if !ok {
		return nil, false
	}
	tokens := strings.Split(rest, ".")
	return tokens, len(tokens) == n
}

// Broker returns the subject of a broker's request: hw.<cluster>.brk.v1.<principal>.<verb>.
func (s Subjects) Broker(principal string, verb BrokerVerb) string {
	return s.join(planeBroker, EscapeToken(principal), string(verb))
}

// BrokerWildcard matches one verb of every principal.
func (s Subjects) BrokerWildcard(verb BrokerVerb) string {
	return s.join(planeBroker, "*", string(verb))
}

// ParseBroker returns principal and verb of a broker's request.
func (s Subjects) ParseBroker(subject string) (principal string, verb BrokerVerb, ok bool) {
	t, ok := s.split(planeBroker, subject, 2)
	if !ok {
		return "", "", false
	}
	principal, ok = UnescapeToken(t[0])
	return principal, BrokerVerb(t[1]), ok
}

// Assignments returns the subject of a broker's assignments: hw.<cluster>.asg.v1.<broker>.
func (s Subjects) Assignments(b BrokerID) string {
	return s.join(planeAssignments, EscapeToken(string(b)))
}

// Leadership returns the subject of a partition's leadership: hw.<cluster>.lead.v1.<topic>.<partition>.
func (s Subjects) Leadership(t TopicName, partition int32) string {
	return s.join(planeLeadership, EscapeToken(string(t)), strconv.Itoa(int(partition)))
}

// LeadershipAll matches the leadership of every partition; LeadershipTopic of one topic's.
func (s Subjects) LeadershipAll() string { return s.join(planeLeadership, ">") }

// LeadershipTopic matches the leadership of every partition of a topic.
func (s Subjects) LeadershipTopic(t TopicName) string {
	return s.join(planeLeadership, EscapeToken(string(t)), "*")
}

// ParseLeadership returns topic and partition of a leadership subject.
func (s Subjects) ParseLeadership(subject string) (TopicName, int32, bool) {
	t, ok := s.split(planeLeadership, subject, 2)
	if !ok {
		return "", 0, false
	}
	name, ok1 := UnescapeToken(t[0])
	p, ok2 := parseIndex(t[1])
	return TopicName(name), p, ok1 && ok2
}

// Control returns the subject of an operator's request: hw.<cluster>.ctl.v1.<principal>.<noun>.<verb>.
func (s Subjects) Control(principal, noun, verb string) string {
	return s.join(planeControl, EscapeToken(principal), noun, verb)
}

// ControlWildcard matches one request of every principal.
func (s Subjects) ControlWildcard(noun, verb string) string {
	return s.join(planeControl, "*", noun, verb)
}

// ParseControl returns principal, noun and verb of an operator's request.
func (s Subjects) ParseControl(subject string) (principal, noun, verb string, ok bool) {
	t, ok := s.split(planeControl, subject, 3)
	if !ok {
		return "", "", "", false
	}
	principal, ok = UnescapeToken(t[0])
	return principal, t[1], t[2], ok
}

// Monitor returns the subject of a monitoring endpoint, which may have dots: hw.<cluster>.mon.v1.<endpoint>.
func (s Subjects) Monitor(endpoint string) string { return s.join(planeMonitor, endpoint) }

// Beat is where a controller process says that it is there: hw.<cluster>.ctr.v1.beat.<name>. BeatAll matches all of them.
func (s Subjects) Beat(controller string) string {
	return s.join(planeControllers, "beat", EscapeToken(controller))
}

// BeatAll matches the beats of every controller process.
func (s Subjects) BeatAll() string { return s.join(planeControllers, "beat", "*") }

// Data is a request of a client to the leader of one epoch: hw.<cluster>.dat.v1.<principal>.<topic>.<partition>.<leader
// epoch>.<verb>. A deposed leader's subject has no subscriber.
type Data struct {
	Principal   string // "*" is the wildcard, only for building
	Topic       TopicName
	Partition   int32
	LeaderEpoch LeaderEpoch
	Verb        DataVerb // "*" is the wildcard, only for building
}

// Data builds the subject of a client's request. Principal and verb "*" make a wildcard to subscribe to.
func (s Subjects) Data(d Data) string {
	principal := d.Principal
	if principal != "*" {
		principal = EscapeToken(principal)
	}
	return s.join(planeData, principal, EscapeToken(string(d.Topic)), strconv.Itoa(int(d.Partition)),
		strconv.FormatInt(int64(d.LeaderEpoch), 10), string(d.Verb))
}

// ParseData returns the parts of a client's request subject.
func (s Subjects) ParseData(subject string) (Data, bool) {
	t, ok := s.split(planeData, subject, 5)
	if !ok {
		return Data{}, false
	}
	principal, ok1 := UnescapeToken(t[0])
	topic, ok2 := UnescapeToken(t[1])
	p, ok3 := parseIndex(t[2])
	e, err := strconv.ParseInt(t[3], 10, 64)
	if !ok1 || !ok2 || !ok3 || err != nil || e < 0 || strconv.FormatInt(e, 10) != t[3] {
		return Data{}, false
	}
	return Data{Principal: principal, Topic: TopicName(topic), Partition: p, LeaderEpoch: LeaderEpoch(e), Verb: DataVerb(t[4])}, true
}

// Replication returns the subject of a follower's fetch session: hw.<cluster>.rep.v1.<leader>.<follower>.
func (s Subjects) Replication(leader, follower BrokerID) string {
	return s.join(planeReplication, EscapeToken(string(leader)), EscapeToken(string(follower)))
}

// ReplicationWildcard matches the fetches of every follower of a leader.
func (s Subjects) ReplicationWildcard(leader BrokerID) string {
	return s.join(planeReplication, EscapeToken(string(leader)), "*")
}

// ParseReplication returns leader and follower of a replication subject.
func (s Subjects) ParseReplication(subject string) (leader, follower BrokerID, ok bool) {
	t, ok := s.split(planeReplication, subject, 2)
	if !ok {
		return "", "", false
	}
	l, ok1 := UnescapeToken(t[0])
	f, ok2 := UnescapeToken(t[1])
	return BrokerID(l), BrokerID(f), ok1 && ok2
}

// Journal returns the one subject of the journal's stream.
func (s Subjects) Journal() string { return s.join(planeJournal, "log") }

// Stream names. A cluster name has no byte that a stream name may not have.

// JournalStream names the journal's stream.
func JournalStream(c ClusterName) string { return "HW_" + string(c) + "_JOURNAL" }

// SnapshotBucket names the object store of the journal's snapshots.
func SnapshotBucket(c ClusterName) string { return "HW_" + string(c) + "_SNAPSHOTS" }

// LeadershipStream names the stream of last leadership values.
func LeadershipStream(c ClusterName) string { return "HW_" + string(c) + "_LEAD" }

func parseIndex(s string) (int32, bool) {
	n, err := strconv.ParseInt(s, 10, 32)
	if err != nil || n < 0 || strconv.FormatInt(n, 10) != s {
		return 0, false
	}
	return int32(n), true
}

const upperHex = "0123456789ABCDEF"

// EscapeToken writes any string as one NATS token. Distinct strings give distinct tokens.
func EscapeToken(s string) string {
	if s == "" {
		return "="
	}
	n := 0
	for i := 0; i < len(s); i++ {
		if !isNameByte(s[i]) {
			n++
		}
	}
	if n == 0 {
		return s
	}
	b := make([]byte, 0, len(s)+2*n)
	for i := 0; i < len(s); i++ {
		if c := s[i]; isNameByte(c) {
			b = append(b, c)
		} else {
			b = append(b, '=', upperHex[c>>4], upperHex[c&15])
		}
	}
	return string(b)
}

// UnescapeToken reads a token that EscapeToken wrote, and refuses every other spelling.
func UnescapeToken(t string) (string, bool) {
	if t == "=" {
		return "", true
	}
	if t == "" {
		return "", false
	}
	b := make([]byte, 0, len(t))
	for i := 0; i < len(t); i++ {
		c := t[i]
		if c != '=' {
			if !isNameByte(c) {
				return "", false
			}
			b = append(b, c)
			continue
		}
		if i+2 >= len(t) {
			return "", false
		}
		hi, lo := strings.IndexByte(upperHex, t[i+1]), strings.IndexByte(upperHex, t[i+2])
		if hi < 0 || lo < 0 || isNameByte(byte(hi<<4|lo)) {
			return "", false
		}
		b = append(b, byte(hi<<4|lo))
		i += 2
	}
	return string(b), true
}
