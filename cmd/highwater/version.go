package main

import (
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/highwater-io/highwater/messages"
)

// release is set by the linker for releases: -ldflags "-X main.release=v1.2.3".
var release = ""

func version() string {
	if release != "" {
		return release
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "(devel)"
}

func (a *app) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Print the version", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			v := map[string]string{"version": version(), "go": runtime.Version(), "platform": runtime.GOOS + "/" + runtime.GOARCH}
			return a.print(v, rows{cells: [][]any{{"highwater " + version(), v["go"], v["platform"]}}, names: []string{version()}})
		},
	}
}

func (a *app) errorsCommand() *cobra.Command {
	c := &cobra.Command{Use: "errors", Short: "What error codes mean and what to do", Args: cobra.NoArgs}
	c.AddCommand(&cobra.Command{
		Use: "explain [CODE]", Short: "Explain one code, or list all", Args: cobra.MaximumNArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			list := messages.Codes
			if len(args) == 1 {
				info, ok := messages.Code(args[0]).Info()
				if !ok {
					return usage("there is no error code %q; `highwater errors explain` lists all", args[0])
				}
				list = []messages.CodeInfo{info}
			}
			t := rows{header: []string{"code", "retryable", "meaning", "what to do"}}
			for _, c := range list {
				t.cells = append(t.cells, []any{c.Code, c.Retryable, c.Meaning, c.Remedy})
				t.names = append(t.names, string(c.Code))
			}
			return a.print(list, t)
		},
	})
	return c
}
