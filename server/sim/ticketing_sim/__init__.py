"""A simulator of whole clusters: servers, disks, network, clients and clocks in one process.

One seed decides everything, so that a run that went wrong is run again by its number. What runs is
the product: the node, its store, the lock table and the Python client's core, none of which reads
a clock, a socket or a disk by itself. What is simulated is the rest, and `faults` breaks it.

- `schedule`: the queue of events and the clocks of the machines.
- `disk`, `network`: what loses, delays, doubles and tears.
- `process`: what every program has: it can be suspended and can crash.
- `standalone_host`, `cluster_host`: servers. `client`, `jobs`, `client_v3`: who uses them.
- `beliefs`, `table_checks`, `ledger`, `raft_checks`: what must hold after every event.
- `world`: all of it together, for one seed; `__main__` runs many.
- `bugs`: bugs put in on purpose, which have to be found.
"""
