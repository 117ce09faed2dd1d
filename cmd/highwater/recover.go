package main

import (
	"crypto/rand"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/highwater-io/highwater/controller"
	"github.com/highwater-io/highwater/messages"
)

func (a *app) recoverCommand() *cobra.Command {
	var cfg controller.Config
	var o controller.RecoverOptions
	var confirm, routes string
	c := &cobra.Command{
		Use: "recover", Short: "The way out when the journal is damaged or went back in time", Args: cobra.NoArgs,
		Long: `Look at the journal in the place of the controllers, all of which have to be stopped, and listen to what the brokers know. Without
--accept-lost-decisions it says what it found and changes nothing: how far the journal can be used, what each broker has seen, which
topics brokers hold that the journal does not know, and which replicas nobody has described.

With it the journal goes on from there, above every revision and epoch that anybody has seen; what was decided behind that is lost.
Of three controllers with embedded servers the streams are on all of them: run this with --lend, and with the flags of each controller, in the
place of two of them, and without it in the place of the third.

In each partition those replicas are in sync that hold the most. Topics that the journal does not know are kept aside by their brokers.
Nothing is deleted: the old entries are written to --archive before.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.Lend && o.AcceptLostDecisions {
				return usage("--lend changes nothing; --accept-lost-decisions belongs to the process that it is lent to")
			}
			if o.AcceptLostDecisions && confirm != a.cluster && !a.confirmed("What was decided behind the journal's end is lost. Type the cluster's name: ", a.cluster) {
				return usage("confirm with --confirm and the cluster's name, %s", a.cluster)
			}
			log := a.logger()
			cfg.Cluster, cfg.Logger = messages.ClusterName(a.cluster), &log
			if routes != "" {
				cfg.Routes = strings.Split(routes, ",")
			}
			if err := a.elsewhere(&cfg); err != nil {
				return err
			}
			if o.Archive == "" {
				o.Archive = filepath.Join(cfg.DataDir, "journal-before-recovery-"+rand.Text()[:8])
			}
			report, err := controller.Recover(cmd.Context(), cfg, o)
			if report.Cluster != "" && !o.Lend {
				if printing := a.print(report, recoveryTable(report)); printing != nil {
					return printing
				}
			}
			return err
		},
	}
	f := c.Flags()
	f.StringVar(&cfg.DataDir, "data-dir", "", "data folder of the controller")
	f.StringVar(&cfg.Listen, "listen", "127.0.0.1:4222", "where the brokers look for the embedded server")
	f.BoolVar(&cfg.InsecureNoAuth, "insecure-no-auth", false, "let --listen be an address that others reach")
	f.StringVar(&cfg.ClusterListen, "cluster-listen", "", "of one of several embedded servers, as the controller has it")
	f.StringVar(&routes, "routes", "", "the same: --cluster-listen of all servers, separated by commas")
	f.BoolVar(&o.Lend, "lend", false, "only run the server of this folder for a recovery in the place of another controller, until it is interrupted")
	f.StringVar(&cfg.Name, "name", "c1", "name of the controller that claims the recovered journal")
	f.StringVar(a.given["nats_url"], "nats-url", "", "NATS servers elsewhere instead of the embedded one, separated by commas; the same as --server")
	f.StringVar(a.given["nats_creds"], "nats-creds", "", "credentials file for --nats-url; the same as --creds")
	f.IntVar(&cfg.JournalReplicas, "journal-replicas", 0, "servers that keep the journal: 1, 3 or 5; 0 is 1, with --cluster-listen 3")
	f.DurationVar(&o.Wait, "wait", 15*time.Second, "for how long brokers are waited for")
	f.BoolVar(&o.AcceptLostDecisions, "accept-lost-decisions", false, "go on from the end of what can be used")
	f.BoolVar(&o.AcceptMissingReplicas, "accept-missing-replicas", false, "go on although a broker has not said what it holds; what it alone holds may be lost")
	f.StringVar(&o.Archive, "archive", "", "new file for the old entries; in the data folder, or the working one, if it is not named")
	f.StringVar(&confirm, "confirm", "", "the cluster's name, instead of typing it")
	return c
}

func recoveryTable(r controller.RecoveryReport) rows {
	cells := [][]any{
		{"JOURNAL", fmt.Sprintf("usable up to revision %d, controller epoch %d   %d topics, %d partitions", r.Revision, r.Epoch, r.Topics, r.Partitions)},
		{"FAULT", orDash(r.Fault)},
	}
	for _, b := range r.Brokers {
		said := "not heard"
		if b.Heard {
			said = fmt.Sprintf("has seen revision %d of controller epoch %d   holds %d replicas", b.Revision, b.Epoch, b.Replicas)
		}
		if b.Ahead {
			said += "   knows more than the journal"
		}
		cells = append(cells, []any{"BROKER " + string(b.ID), said})
	}
	for _, t := range r.Unknown {
		cells = append(cells, []any{"UNKNOWN TOPIC", fmt.Sprintf("%s (id %s) on %s: kept aside", printable(t.Name), t.ID, joined(t.Brokers))})
	}
	for _, m := range r.Missing {
		cells = append(cells, []any{"NOT DESCRIBED", m})
	}
	if n := r.MissingCount - len(r.Missing); n > 0 {
		cells = append(cells, []any{"NOT DESCRIBED", fmt.Sprintf("and %d more", n)})
	}
	if d := r.Recovered; d != nil {
		cells = append(cells, []any{"RECOVERED", fmt.Sprintf("revision %d   epoch %d   store id %s", d.Revision, d.Epoch, d.Store)},
			[]any{"ARCHIVE", d.Archive}, []any{"NEXT", "start the controllers"})
	} else {
		cells = append(cells, []any{"NEXT", "restore the newest journal, or: highwater cluster recover --accept-lost-decisions"})
	}
	return rows{cells: cells, names: []string{string(r.Cluster)}}
}
