package placement

import (
	"math/rand/v2"
	"slices"
	"sort"
)

// A ranking keeps items 0…n-1 in descending order of a count that only ever falls by one: the item changes places with
// the last one of its equals, and the order still holds.
type ranking struct {
	count []int
	order []int32
	pos   []int32 // place of each item in order
}

// newRanking ranks the items; equals stand in random order.
func newRanking(count []int, random *rand.Rand) ranking {
	r := ranking{count: count, order: make([]int32, len(count)), pos: make([]int32, len(count))}
	for i := range r.order {
		r.order[i] = int32(i)
	}
	random.Shuffle(len(r.order), func(i, j int) { r.order[i], r.order[j] = r.order[j], r.order[i] })
	slices.SortStableFunc(r.order, func(a, b int32) int { return count[b] - count[a] })
	for p, i := range r.order {
		r.pos[i] = int32(p)
	}
	return r
}

// at returns the count at a place.
func (r *ranking) at(place int) int { return r.count[r.order[place]] }

// end returns the place after the last item with at least this count.
func (r *ranking) end(count int) int {
	return sort.Search(len(r.order), func(p int) bool { return r.at(p) < count })
}

// after returns the first place whose item is not among the taken ones, which are few.
func (r *ranking) after(taken []int32) int {
	place := 0
	for slices.Contains(taken, r.order[place]) {
		place++
	}
	return place
}

// fall lowers the count of an item by one.
func (r *ranking) fall(item int32) {
	last := int32(r.end(r.count[item]) - 1)
	place, other := r.pos[item], r.order[last]
	r.order[place], r.order[last] = other, item
	r.pos[other], r.pos[item] = place, last
	r.count[item]--
}
