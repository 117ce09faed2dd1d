//go:build highwater_next

package messages

// latestVersion of a build that stands for the next release: it is made by tests of upgrades, and never given to anybody.
const latestVersion = FirstVersion + 1
