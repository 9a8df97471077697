"""Administration: a gRPC service of the server, and the command `ticketing-admin` that calls it.

`spec/admin.proto` says what can be asked. `host` is all that the service needs of the process
around it; `answers` makes its answers of the engine's; `guard` decides who may call; `listening`
is the only module of the server that opens a gRPC port. On the other side `cli` reads the command
line, `calls` has the channel and turns errors into texts, `tables` prints, and `offline` works on
the data directory of a stopped node.

gRPC is imported by `listening` and `calls` alone, and these only where it is used.
"""

import os

# What gRPC reads when it is loaded. Its own lines would stand between those of log or command.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
# Its handlers at a fork crash, now and then, the process that uvloop starts to make a snapshot.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
