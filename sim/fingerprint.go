package sim

import (
	"container/list"
	"fmt"
	"hash/maphash"
	"reflect"

	"google.golang.org/protobuf/proto"

	"github.com/highwater-io/highwater/actors"
)

// fingerprints have one seed in a process, so they can be compared within it only.
var fingerprints = maphash.MakeSeed()

// fingerprintOf mixes everything that values hold, behind pointers too, into one number. Functions, channels and locks say
// nothing of a state and are left out.
func fingerprintOf(values ...any) uint64 {
	f := fingerprint(14695981039346656037)
	for _, v := range values {
		f.value(reflect.ValueOf(v), 0)
	}
	return uint64(f)
}

type fingerprint uint64

// ofWire and ofCluster remember what types are.
var ofWire, ofCluster = map[reflect.Type]bool{}, map[reflect.Type]bool{}

func implements(known map[reflect.Type]bool, t, what reflect.Type) bool {
	is, there := known[t]
	if !there {
		is = t.Implements(what)
		known[t] = is
	}
	return is
}

func (f *fingerprint) mix(v uint64) {
	x := uint64(*f) ^ v
	x *= 0x9e3779b97f4a7c15
	x ^= x >> 29
	*f = fingerprint(x*0xbf58476d1ce4e5b9 ^ x>>32)
}

func (f *fingerprint) text(s string) { f.mix(maphash.String(fingerprints, s)) }

var (
	messageType = reflect.TypeFor[proto.Message]()
	clusterType = reflect.TypeFor[actors.Cluster]()
	listType    = reflect.TypeFor[list.List]()
	elementType = reflect.TypeFor[list.Element]()
)

// maxNesting is deeper than any state: what is nested deeper goes round in circles.
const maxNesting = 40

func (f *fingerprint) value(v reflect.Value, depth int) {
	if depth > maxNesting {
		panic(fmt.Sprintf("a %s is nested without end", v.Type()))
	}
	switch v.Kind() {
	case reflect.Invalid:
		f.mix(1)
	case reflect.Bool:
		f.mix(map[bool]uint64{true: 3, false: 2}[v.Bool()])
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		f.mix(uint64(v.Int()))
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		f.mix(v.Uint())
	case reflect.String:
		f.text(v.String())
	case reflect.Slice, reflect.Array:
		f.list(v, depth)
	case reflect.Map:
		f.table(v, depth)
	case reflect.Pointer, reflect.Interface:
		f.behind(v, depth)
	case reflect.Struct:
		f.structure(v, depth)
	}
}

func (f *fingerprint) list(v reflect.Value, depth int) {
	f.mix(uint64(v.Len()))
	if v.Kind() == reflect.Slice && v.Type().Elem().Kind() == reflect.Uint8 {
		f.mix(maphash.Bytes(fingerprints, v.Bytes()))
		return
	}
	for i := range v.Len() {
		f.value(v.Index(i), depth+1)
	}
}

// table adds up what the entries are, so that their order does not count.
func (f *fingerprint) table(v reflect.Value, depth int) {
	var sum uint64
	for it := v.MapRange(); it.Next(); {
		e := fingerprint(7)
		e.value(it.Key(), depth+1)
		e.value(it.Value(), depth+1)
		sum += uint64(e)
	}
	f.mix(uint64(v.Len()))
	f.mix(sum)
}

func (f *fingerprint) behind(v reflect.Value, depth int) {
	switch {
	case v.IsNil():
		f.mix(5)
	case implements(ofCluster, v.Type(), clusterType):
		// the catalog: it follows from the journal and the position in that
	default:
		if v.Kind() == reflect.Interface {
			f.text(v.Elem().Type().String())
		}
		f.value(v.Elem(), depth+1)
	}
}

// structure leaves out what a message of the wire keeps for itself.
func (f *fingerprint) structure(v reflect.Value, depth int) {
	t := v.Type()
	switch t {
	case listType:
		e := v.FieldByName("root").FieldByName("next")
		for range v.FieldByName("len").Int() {
			f.value(e, depth+1)
			e = e.Elem().FieldByName("next")
		}
		return
	case elementType:
		f.value(v.FieldByName("Value"), depth+1)
		return
	}
	wire := implements(ofWire, reflect.PointerTo(t), messageType)
	for i := range t.NumField() {
		if !wire || t.Field(i).IsExported() {
			f.value(v.Field(i), depth+1)
		}
	}
}
