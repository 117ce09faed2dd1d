// Package controller wires one controller process: an embedded NATS server or connections to one elsewhere, the journal, the
// tree of actors, and the edge.
//
//	lock ─▶ server ─▶ connections ─▶ journal: recover, claim ─▶ tree of actors ─▶ edge opened: ready
//	                                                                                  │ Stop, or a fault
//	lock ◀─ server ◀─ connections ◀────── tree stopped ◀── answers given ◀── intake stopped
//
// Start returns when the controller is ready, with everything in the upper line done; Stop goes back along the lower one.
// The edge is opened last and closed first, so that nothing is asked of a controller that cannot decide yet or any more.
// A fault that ends the tree, as another controller's claim does, or the end of the server, stops everything else too; Done
// and Err tell.
//
// One that shares its journal with others is ready as a standby, and goes round:
//
//	standby: follow the journal, answer monitors ── suspicion, claim ──▶ active: tree, edge
//	      ▲── new catalog ◀── deposed, stepped down, the journal takes nothing ───┘
//
// term.go is what a role consists of, standby.go when a standby claims, govern.go the way round, members.go what the
// processes hear of each other.
//
// snapshots.go takes snapshots of the catalog in the background and cuts the journal behind them, export.go gives one to whoever
// asks, restore.go begins a new journal with one.
//
// config.go says what can be set, ports.go what the parts ask of each other, server.go how the embedded server is set up.
package controller
