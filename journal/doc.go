// Package journal is the fenced, single-writer log of the cluster's metadata and what is built from it.
package journal
