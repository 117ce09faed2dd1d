// Package tidy holds the rules of the tree as ordinary tests: who may import whom, what the pure packages do without, and
// the budgets of files, functions and interfaces. Each rule says why it is there. Budgets are only ever tightened.
package tidy
