//go:build !highwater_next

package messages

// latestVersion is the latest version that this build knows.
const latestVersion = FirstVersion
