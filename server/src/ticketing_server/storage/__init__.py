"""What a node keeps: a write-ahead log, snapshots and its identity, in one directory.

`store.Store` is all of it; `writer.Writer` runs a store on a thread of its own. Below them are
`wal` (reading a log back), `records` (its bytes), `identity`, and `directory`, the few calls that
all of this makes on a file system.

What it promises
================

- When `Store.write` returned, all of it survives a loss of power. Where it didn't return, a
  prefix of it may be there at the next start; term and vote come before the entries written with
  them.
- Damage below the last group is never taken for the end of the log: the store refuses to open.
  Damage in the last group can be a write that a loss of power cut short: it is cut at the first
  bad record, and what was there is kept in a file. Opening writes a group, so what a node was
  started with is below the last group from then on.
- Nothing is acted on that isn't synced: opening syncs what it read.
"""
