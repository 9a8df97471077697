"""The Raft core of a cluster, without I/O.

Nothing here reads a clock, draws a number, writes a file or opens a socket: `core.Raft` is told
what happened and when, and says what is to be done. `log`, `configuration`, `progress`, `rounds`
and `saves` are its parts; `messages` are the values it speaks in; `timing` has every duration
and window.

What the core promises
======================

As long as its driver does what is below, whatever messages are lost, doubled, late or out of
order, and whenever nodes stop:

- One leader per term at most, and no node votes twice in one.
- Logs that have an entry of one index and term in common are the same up to it. What was
  committed is in the log of every later leader, and every node hands out the same entry at the
  same index, each once per start, in order.
- A leader hands out committed entries only while a majority acknowledged a heartbeat round that
  it *sent* less than 350 ms ago. Followers refuse votes for 400 ms after they heard a leader or
  started, so no other leader has been elected by then; an election by transfer skips the
  refusal, and the old leader hands nothing out from the moment it asked for that election.
- Stamps never fall from entry to entry, and don't rise while nobody leads.
- A configuration changes by one member at a time, each change committed before the next.

It promises progress while a majority of voters hears each other within some tens of
milliseconds, and their disks sync.

What the driver does
====================

- It begins with `Raft(node_id, Restored(...), entropy, now_ns)`: what was synced, all of it. The
  node id was made with the data directory. A new cluster is founded by giving
  `core.founding_entry` to `found` on every member.
- It calls `step` for each message of a peer that proved its node id and the cluster id, `tick`
  by `wake_ns()` at the latest, `propose` for commands, `synced` for saves, and after each of
  these, or a run of them in one turn, `take(now_ns)`. Times come from one clock that counts
  suspended time, and each call gets the time at which it is made, not when its data came in.
- **Save**: writes of `Effects.save` are done whole and in the order of their numbers: an
  installed snapshot first, entries replacing all from their first index on, term and vote in the
  same write as entries. `synced(number)` says that they survive a loss of power.
- **Messages**: those in `now` leave at once; those in `after_sync` leave when all saves up to
  `after` are synced, and never before. Any may be lost. After a broken connection to a peer, or a
  snapshot that didn't arrive, `unreachable(peer)`.
- **Committed** entries are applied in order. Where the node leads, clients are answered with
  them before anything else is awaited.
- **elected**: `propose(payload, now_ns, NOOP)` with what the term needs. Nothing else is taken
  before. While `may_propose` is false clients aren't read, and their frames wait to be the next
  entry.
- **Snapshots**: made by the driver as of an applied entry that is synced, then
  `compact(index, trailing)`, which says what to note with it. For `InstallSnapshot` the file is
  sent along, and the message is stepped at the other side when the file arrived whole; its table
  replaces the node's own.
- **Members**: an empty node that knocks is told to the leader by `join`, and `leave` when it's
  gone. A node that finds `is_removed` stops and keeps its files.
- **Clients** are told `named_leader(now_ns)`, and nothing where it is None. On SIGTERM a leader
  calls `transfer`, and every node sets `is_leaving`. `disk_full` is told when it is, and when not.
- An exception out of the core means that a promise is broken somewhere: the process ends and
  keeps its files.
"""
