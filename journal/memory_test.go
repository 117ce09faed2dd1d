package journal_test

import (
	"testing"

	"github.com/highwater-io/highwater/journal"
	"github.com/highwater-io/highwater/journal/journaltest"
)

func TestMemoryPassesTheSuite(t *testing.T) {
	journaltest.Run(t, func(*testing.T) journal.Log { return journal.NewMemory() })
}
