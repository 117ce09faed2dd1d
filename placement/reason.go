package placement

import (
	"strconv"
	"strings"

	"github.com/highwater-io/highwater/messages"
)

// ReasonCode names one cause of a decision, or of there being none. The codes are stable: people and programs match them.
type ReasonCode string

// Why something is done.
const (
	ReasonBrokerGone      ReasonCode = "BROKER_GONE"      // broker: its replicas are rebuilt elsewhere
	ReasonBrokerDraining  ReasonCode = "BROKER_DRAINING"  // broker: its replicas and leaders go elsewhere, it gets none
	ReasonRackSpread      ReasonCode = "RACK_SPREAD"      // from, to: the replicas are spread better
	ReasonEvenReplicas    ReasonCode = "EVEN_REPLICAS"    // from, to: replicas in proportion to weight
	ReasonEvenLeaders     ReasonCode = "EVEN_LEADERS"     // from, to: leaders in proportion to weight
	ReasonFactorRaised    ReasonCode = "FACTOR_RAISED"    // from, to: numbers of replicas
	ReasonFactorLowered   ReasonCode = "FACTOR_LOWERED"   // from, to: numbers of replicas
	ReasonRequested       ReasonCode = "REQUESTED"        // somebody has written it so
	ReasonPreferredLeader ReasonCode = "PREFERRED_LEADER" // broker: the first replica leads
	ReasonLeaderLost      ReasonCode = "LEADER_LOST"      // broker: it led and does no longer
)

// Why something is not done, or not that way.
const (
	ReasonNoTarget        ReasonCode = "NO_TARGET"          // replicas, usable: all usable brokers hold a replica already
	ReasonNoLiveCopy      ReasonCode = "NO_LIVE_COPY"       // nobody is there to copy from
	ReasonMoveInProgress  ReasonCode = "MOVE_IN_PROGRESS"   // the partition is being reassigned already
	ReasonLevelRequired   ReasonCode = "LEVEL_REQUIRED"     // level: its domains would not be distinct, and they must be
	ReasonHoldsReplica    ReasonCode = "HOLDS_REPLICA"      // the broker has a replica of the partition
	ReasonBrokerFenced    ReasonCode = "BROKER_FENCED"      // broker
	ReasonBrokerStopping  ReasonCode = "BROKER_STOPPING"    // broker
	ReasonBrokerUnsettled ReasonCode = "BROKER_UNSETTLED"   // broker: back for too short a time
	ReasonBrokerUnknown   ReasonCode = "BROKER_UNKNOWN"     // broker
	ReasonNotInISR        ReasonCode = "NOT_IN_ISR"         // broker
	ReasonWorseSpread     ReasonCode = "WORSE_SPREAD"       // domain, replicas: it has that many of the partition already
	ReasonMoreLoaded      ReasonCode = "MORE_LOADED"        // load, weight, and those of the broker that was chosen
	ReasonTie             ReasonCode = "TIE"                // as good as the chosen one; the seed has decided
	ReasonNothingBetter   ReasonCode = "NOTHING_BETTER"     // no change would improve anything
	ReasonBelowThreshold  ReasonCode = "BELOW_THRESHOLD"    // load, part, percent: not uneven enough to act
	ReasonRateLimited     ReasonCode = "RATE_LIMITED"       // limit: wanted, but not in this call
	ReasonAlreadyLeads    ReasonCode = "ALREADY_LEADS"      // broker
	ReasonNotPreferred    ReasonCode = "NOT_PREFERRED"      // preferred: that one goes before
	ReasonNoLeaderToElect ReasonCode = "NO_LEADER_TO_ELECT" // no replica is in the ISR on a broker that may lead
	ReasonCooling         ReasonCode = "COOLING"            // balancing has changed the leader a short while ago
	ReasonNoChange        ReasonCode = "NO_CHANGE"          // it is so already
)

// texts say the codes for people; {name} stands for an argument.
var texts = map[ReasonCode]string{
	ReasonBrokerGone:      "broker {broker} is gone, so its replica is rebuilt elsewhere",
	ReasonBrokerDraining:  "broker {broker} is draining",
	ReasonRackSpread:      "the replicas are spread better with {to} than with {from}",
	ReasonEvenReplicas:    "{from} has more replicas than its weight asks for and {to} fewer",
	ReasonEvenLeaders:     "{from} leads more than its weight asks for and {to} less",
	ReasonFactorRaised:    "the replication factor rises from {from} to {to}",
	ReasonFactorLowered:   "the replication factor falls from {from} to {to}",
	ReasonRequested:       "it was asked for",
	ReasonPreferredLeader: "{broker} is the preferred leader and ready to lead",
	ReasonLeaderLost:      "{broker} led and does no longer",
	ReasonNoTarget:        "there is no broker to take it: {usable} usable brokers, and the partition is to have {replicas} replicas",
	ReasonNoLiveCopy:      "no live broker holds a complete copy",
	ReasonMoveInProgress:  "the partition is being reassigned",
	ReasonLevelRequired:   "the replicas must be in distinct domains at level {level} of the racks",
	ReasonHoldsReplica:    "it holds a replica already",
	ReasonBrokerFenced:    "broker {broker} is fenced",
	ReasonBrokerStopping:  "broker {broker} is stopping",
	ReasonBrokerUnsettled: "broker {broker} came back a short while ago",
	ReasonBrokerUnknown:   "broker {broker} is not registered",
	ReasonNotInISR:        "{broker} is not in the ISR",
	ReasonWorseSpread:     "{domain} has {replicas} of the replicas already",
	ReasonMoreLoaded:      "its load is {load} for the weight {weight}; {chosen} has {chosen_load} for {chosen_weight}",
	ReasonTie:             "as good as {chosen}; the seed decided",
	ReasonNothingBetter:   "no change would improve anything",
	ReasonBelowThreshold:  "it leads {load} and its part is {part}: within {percent} percent",
	ReasonRateLimited:     "no more than {limit} at a time",
	ReasonAlreadyLeads:    "{broker} leads already",
	ReasonNotPreferred:    "{preferred} goes before in the order of preference",
	ReasonCooling:         "its leader was changed a short while ago",
	ReasonNoChange:        "it is so already",
	ReasonNoLeaderToElect: "no replica is in the ISR on a broker that may lead",
}

// Arg is one fact of a reason.
type Arg struct{ Name, Value string }

// Reason is why something is done or not done. Placement, election, moves and balance speak in it, and explain prints it.
type Reason struct {
	Code ReasonCode
	Args []Arg
}

// because makes a reason of a code and names with values by turns.
func because(code ReasonCode, pairs ...string) Reason {
	r := Reason{Code: code}
	for i := 0; i+1 < len(pairs); i += 2 {
		r.Args = append(r.Args, Arg{pairs[i], pairs[i+1]})
	}
	return r
}

// Arg returns the value of an argument, "" if there is none of the name.
func (r Reason) Arg(name string) string {
	for _, a := range r.Args {
		if a.Name == name {
			return a.Value
		}
	}
	return ""
}

// String returns the reason in the one grammar: CODE name=value name=value. A value with anything but letters, digits
// and ._-/ in it, or an empty one, is quoted as in Go. ParseReason reads it.
func (r Reason) String() string {
	var s strings.Builder
	s.WriteString(string(r.Code))
	for _, a := range r.Args {
		s.WriteString(" " + a.Name + "=")
		if plain(a.Value) {
			s.WriteString(a.Value)
		} else {
			s.WriteString(strconv.Quote(a.Value))
		}
	}
	return s.String()
}

// Text returns the reason as half a sentence for people; for a code that it does not know, what String returns.
func (r Reason) Text() string {
	text, ok := texts[r.Code]
	if !ok {
		return r.String()
	}
	for _, a := range r.Args {
		text = strings.ReplaceAll(text, "{"+a.Name+"}", a.Value)
	}
	return text
}

// ParseReason reads what String has written. Codes that it does not know are kept: they may be of a later version. The
// error is INVALID_REQUEST.
func ParseReason(s string) (Reason, error) {
	code, rest, _ := strings.Cut(s, " ")
	r := Reason{Code: ReasonCode(code)}
	if code == "" {
		return Reason{}, messages.Errorf(messages.CodeInvalidRequest, "the reason %q has no code", s)
	}
	for rest != "" {
		name, after, ok := strings.Cut(rest, "=")
		if !ok || name == "" {
			return Reason{}, messages.Errorf(messages.CodeInvalidRequest, "the reason %q has an argument without a value", s)
		}
		value, tail, _ := strings.Cut(after, " ")
		if strings.HasPrefix(after, `"`) {
			quoted, err := strconv.QuotedPrefix(after)
			if err != nil {
				return Reason{}, messages.Errorf(messages.CodeInvalidRequest, "the reason %q has an open quote", s)
			}
			value, _ = strconv.Unquote(quoted)
			tail = strings.TrimPrefix(after[len(quoted):], " ")
		}
		r.Args = append(r.Args, Arg{name, value})
		rest = tail
	}
	return r, nil
}

func plain(s string) bool {
	for i := 0; i < len(s); i++ {
		c := s[i]
		if !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.IndexByte("._-/", c) >= 0) {
			return false
		}
	}
	return s != ""
}
