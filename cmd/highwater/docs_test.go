package main

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"
)

// TestTheTableOfFlagsHasTheDefaults holds docs/operations.md to what serve takes.
func TestTheTableOfFlagsHasTheDefaults(t *testing.T) {
	page, err := os.ReadFile("../../docs/operations.md")
	must(t, err)
	rows := regexp.MustCompile(`(?m)^\| (\x60--[^|]*) \|([^|]*)\|`).FindAllStringSubmatch(string(page), -1)
	for _, k := range configKeys {
		found := strings.HasPrefix(k.key, "nats_") && strings.Contains(string(page), "`"+strings.ToUpper(k.key)+"`") // a table of its own
		for _, row := range rows {
			if !strings.Contains(row[1], "`--"+flagOf(k.key)+"`") {
				continue
			}
			found = true
			if want := written(k.fallback); !strings.Contains(strings.ReplaceAll(row[2], ",", ""), want) {
				t.Errorf("--%s has the default %q, the page says %q", flagOf(k.key), want, row[2])
			}
		}
		if !found {
			t.Errorf("--%s is not on the page", flagOf(k.key))
		}
	}
}

// written is a default as the page has it, without separators of thousands; "" for none, and where the page says it in words.
func written(value any) string {
	switch v := value.(type) {
	case time.Duration:
		for _, unit := range []struct {
			of   time.Duration
			name string
		}{{time.Hour, "h"}, {time.Second, "s"}, {time.Millisecond, "ms"}} {
			if v >= unit.of {
				return fmt.Sprintf("%g %s", float64(v)/float64(unit.of), unit.name)
			}
		}
	case int, int64:
		if s := fmt.Sprint(v); s != "0" {
			return s
		}
		return ""
	}
	return fmt.Sprint(value)
}
