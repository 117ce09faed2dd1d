package placement

import (
	"slices"
	"strings"
)

// domains is the tree of failure domains over some brokers: the root is the cluster, below it one level for each level
// of the rack labels, below the racks the brokers. All racks are at the same depth: where a label has fewer levels than
// the deepest one, the missing levels are unlabelled domains, and the brokers that lack the same level of the same
// domain share one. So brokers without any label share one rack, the pseudo-rack.
type domains struct {
	brokers []Broker // in the order of their ids
	nodes   []node   // the root is nodes[0]
	depth   int      // levels of racks; 0 if no broker has a label and the root is the one rack
	leaf    []int32  // the node of each broker
}

type node struct {
	label    string
	level    int // 0 is the root, depth the racks, depth+1 the brokers
	parent   int32
	children []int32
	broker   int32 // index into brokers; -1 for a domain
	size     int   // brokers below, the node itself if it is one
	// lo and hi bound the replicas of one partition in this domain; see spread.go.
	lo, hi int
}

// newDomains builds the tree with at least depth levels of racks.
func newDomains(brokers []Broker, depth int) *domains {
	d := &domains{brokers: brokers, depth: depth, leaf: make([]int32, len(brokers))}
	labels := make([][]string, len(brokers))
	all := make([]int32, len(brokers))
	for i := range brokers {
		labels[i] = brokers[i].Rack.Levels()
		d.depth = max(d.depth, len(labels[i]))
		all[i] = int32(i)
	}
	d.grow(node{parent: -1, broker: -1, size: len(brokers)}, all, labels)
	return d
}

// grow adds a domain with the given brokers and everything below it.
func (d *domains) grow(n node, members []int32, labels [][]string) int32 {
	id := int32(len(d.nodes))
	d.nodes = append(d.nodes, n)
	children := make([]int32, 0, 4)
	if n.level == d.depth {
		for _, b := range members {
			d.leaf[b] = int32(len(d.nodes))
			children = append(children, d.leaf[b])
			d.nodes = append(d.nodes, node{label: string(d.brokers[b].ID), level: n.level + 1, parent: id, broker: b, size: 1})
		}
		d.nodes[id].children = children
		return id
	}
	groups := map[string][]int32{}
	var names []string
	for _, b := range members {
		label := ""
		if n.level < len(labels[b]) {
			label = labels[b][n.level]
		}
		if _, ok := groups[label]; !ok {
			names = append(names, label)
		}
		groups[label] = append(groups[label], b)
	}
	slices.Sort(names)
	for _, name := range names {
		child := node{label: name, level: n.level + 1, parent: id, broker: -1, size: len(groups[name])}
		children = append(children, d.grow(child, groups[name], labels))
	}
	d.nodes[id].children = children
	return id
}

// require makes the domains of a level take one replica of a partition each, by leaving them the size of one broker. 0
// requires nothing.
func (d *domains) require(level int) {
	if level == 0 {
		return
	}
	for id := len(d.nodes) - 1; id >= 0; id-- { // children come after their parent
		n := &d.nodes[id]
		if n.level >= level {
			n.size = 1
			continue
		}
		n.size = 0
		for _, c := range n.children {
			n.size += d.nodes[c].size
		}
	}
}

// path returns the label of a domain from the root, for people.
func (d *domains) path(id int32) string {
	var levels []string
	for ; id > 0; id = d.nodes[id].parent {
		if d.nodes[id].label != "" {
			levels = append(levels, d.nodes[id].label)
		}
	}
	slices.Reverse(levels)
	return rackName(strings.Join(levels, "/"))
}

// at returns the domain of a broker at a level.
func (d *domains) at(broker int32, level int) int32 {
	id := d.leaf[broker]
	for d.nodes[id].level > level {
		id = d.nodes[id].parent
	}
	return id
}

// level returns the domains of a level, in the order of their labels.
func (d *domains) level(level int) []int32 {
	var ids []int32
	for id := range d.nodes {
		if d.nodes[id].level == level {
			ids = append(ids, int32(id))
		}
	}
	return ids
}

// unlabelled returns the brokers without any label.
func (d *domains) unlabelled() []Broker {
	var out []Broker
	for _, b := range d.brokers {
		if b.Rack == "" {
			out = append(out, b)
		}
	}
	return out
}

func (d *domains) totalWeight() int {
	total := 0
	for i := range d.brokers {
		total += d.brokers[i].Weight
	}
	return total
}
