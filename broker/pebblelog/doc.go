// Package pebblelog is the reference storage of brokers: every replica of a broker in one Pebble database, with one
// write-ahead log and one fsync for all of them.
//
// Layout of the keys (all numbers big endian, so that keys sort by offset):
//
//	i                                    identity: storage id, cluster, broker, clean epoch
//	s                                    the highest position of the journal that was heard of
//	r<topic id 16><partition 4>          a held replica: topic name, log start
//	h<topic id 16><partition 4>          its last written high-water mark
//	e<topic id 16><partition 4><epoch 8> first offset of a leader epoch
//	p<topic id 16><partition 4><id 8>    last batches of an idempotent producer
//	d<topic id 16><partition 4><base 8>  a batch, a serialized StoredBatch
//
// A Write is one atomic Pebble batch, so a torn tail of the write-ahead log loses whole writes only. With Always every Write
// waits for the fsync that covers it, and writes that wait at the same time share one. With Interval a Write returns at
// once and the log is synced at the interval: what was acknowledged since is lost when the machine (not only the process)
// dies, and the broker says so when it registers.
package pebblelog
