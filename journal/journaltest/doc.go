// Package journaltest is the suite that every journal.Log must pass, also with a journal.Committer on top.
package journaltest
