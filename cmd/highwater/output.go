package main

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"
	"gopkg.in/yaml.v3"

	"github.com/highwater-io/highwater/messages"
)

var outputs = []string{"table", "wide", "json", "yaml", "name"}

func checkOutput(o string) error {
	if !slices.Contains(outputs, o) {
		return usage("--output is %q; it must be one of %s", o, strings.Join(outputs, ", "))
	}
	return nil
}

// rows is a table in all its forms: the wide columns are shown with -o wide only, the names with -o name.
type rows struct {
	header []string
	wide   []string
	cells  [][]any // as many as header and wide together
	names  []string
}

// print writes data as the output flag asks: as it is for json and yaml, as a table otherwise.
func (a *app) print(data any, t rows) error {
	switch a.output {
	case "json":
		e := json.NewEncoder(a.out)
		e.SetIndent("", "  ")
		return e.Encode(data)
	case "yaml":
		return a.printYAML(data)
	case "name":
		for _, n := range t.names {
			if _, err := fmt.Fprintln(a.out, n); err != nil {
				return err
			}
		}
		return nil
	}
	return a.printTable(t)
}

func (a *app) printYAML(data any) error {
	raw, err := json.Marshal(data)
	if err != nil {
		return err
	}
	// Through JSON, so that both forms have the same names. yaml.v3 reads JSON, and so keeps integers whole.
	var plain any
	if err := yaml.Unmarshal(raw, &plain); err != nil {
		return err
	}
	e := yaml.NewEncoder(a.out)
	e.SetIndent(2)
	if err := e.Encode(plain); err != nil {
		return err
	}
	return e.Close()
}

func (a *app) printTable(t rows) error {
	w := table.NewWriter()
	style := table.StyleDefault
	style.Options = table.OptionsNoBordersAndSeparators
	style.Format.Header = text.FormatUpper
	style.Box.PaddingLeft, style.Box.PaddingRight = "", "   "
	w.SetStyle(style)
	columns := slices.Clone(t.header)
	if a.output == "wide" {
		columns = append(columns, t.wide...)
	}
	if !a.noHeaders && len(columns) > 0 {
		header := make(table.Row, len(columns))
		for i, c := range columns {
			header[i] = c
		}
		w.AppendHeader(header)
	}
	for _, c := range t.cells {
		if len(columns) > 0 {
			c = c[:len(columns)]
		}
		row := make(table.Row, len(c))
		for i, cell := range c {
			row[i] = printable(fmt.Sprint(cell))
		}
		w.AppendRow(row)
	}
	for _, line := range strings.Split(w.Render(), "\n") {
		if _, err := fmt.Fprintln(a.out, strings.TrimRight(line, " ")); err != nil {
			return err
		}
	}
	return nil
}

// printable writes what others have named so that it cannot speak to the terminal.
func printable(s string) string {
	if strings.IndexFunc(s, unprintable) < 0 {
		return s
	}
	var b strings.Builder
	for _, r := range s {
		if unprintable(r) {
			b.WriteString(strings.Trim(strconv.QuoteRune(r), "'"))
			continue
		}
		b.WriteRune(r)
	}
	return b.String()
}

func unprintable(r rune) bool { return !unicode.IsPrint(r) && r != '\n' }

func joined(ids []messages.BrokerID) string {
	if len(ids) == 0 {
		return "-"
	}
	return strings.Join(messages.BrokerStrings(ids), ",")
}

// marked lists replicas with a star at the leader.
func marked(replicas []messages.BrokerID, leader messages.BrokerID) string {
	out := make([]string, len(replicas))
	for i, r := range replicas {
		out[i] = string(r)
		if r == leader {
			out[i] += "*"
		}
	}
	return strings.Join(out, ",")
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}
