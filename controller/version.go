package controller

import (
	"errors"

	"github.com/highwater-io/highwater/journal"
	"github.com/highwater-io/highwater/messages"
)

// catalog returns an empty catalog that takes in what this process knows.
func (c *Controller) newCatalog() *journal.Catalog {
	return journal.NewCatalogReading(c.cfg.versions.Max)
}

// checkVersion refuses a cluster that has not come as far as the first version that this build knows. That it has gone too
// far is found by whoever reads the journal.
func (c *Controller) checkVersion(known *messages.Cluster) error {
	if at := known.FinalizedVersion(); at < c.cfg.versions.Min {
		return messages.Errorf(messages.CodeUnsupportedVersion, "the cluster is at version %d, this build knows versions %s", at, c.cfg.versions).
			WithHint("run a build that knows both, and finalize the upgrade with that: highwater cluster upgrade finalize")
	}
	return nil
}

// unfit says why a build must not become active. It is for good where the journal goes on with what this build cannot read;
// where the cluster has only not come as far as this build, it may come.
type unfit struct {
	why     *messages.Error
	forGood bool
}

// unfitFor reports whether an error says that this build must not rule the cluster, and remembers it. Such a process stands
// by: it shows what it has read, and that it can read no more.
func (c *Controller) unfitFor(err error) bool {
	newer := (*journal.TooNew)(nil)
	coded := (*messages.Error)(nil)
	if !errors.As(err, &newer) && !(errors.As(err, &coded) && coded.Code == messages.CodeUnsupportedVersion) {
		return false
	}
	why := messages.AsError(err)
	if before := c.unfit.Swap(&unfit{why, newer != nil}); before == nil || before.why.Message != why.Message {
		c.log.Error().Str("code", string(why.Code)).Str("reason", why.Message).Str("do", why.Hint).
			Msg("this build must not become active; it stands by and does nothing")
	}
	return true
}

// whyUnfit says why this process must not become active, "" if it may.
func (c *Controller) whyUnfit() string {
	if why := c.unfit.Load(); why != nil {
		return why.why.Message
	}
	return ""
}

// unreadable reports whether the journal goes on with what this build will never read.
func (c *Controller) unreadable() bool {
	u := c.unfit.Load()
	return u != nil && u.forGood
}

// reconsider finds out whether the cluster has come as far as this build by now.
func (c *Controller) reconsider(known *messages.Cluster) {
	u := c.unfit.Load()
	if u == nil || u.forGood || known == nil || c.checkVersion(known) != nil {
		return
	}
	c.unfit.Store(nil)
	c.log.Info().Uint32("version", uint32(known.FinalizedVersion())).Msg("the cluster has come to a version that this build knows; it may become active")
}

// itself lists the one process that there is.
func (c *Controller) itself(t *term) []messages.ControllerView {
	return []messages.ControllerView{{Name: c.cfg.Name, Role: "active", ControllerEpoch: t.epoch, Applied: t.catalog.Applied(), URL: withoutSecrets(c.URL()),
		Versions: c.cfg.versions, Release: c.cfg.release}}
}
