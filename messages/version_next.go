//go:build highwater_next

package messages

// latestVersion of a build that stands for the next release: it is made by tests of upgrades, and never given to anybody.
const latestVersion = FirstVersion + 1

// NextFields are fields of a record's body that only the next release knows.
func NextFields(body []byte) *Unknown { return &Unknown{body: body} }
