"""`python -m ticketing_server` is `ticketing-server`."""

import sys

from ticketing_server.cli import main

if __name__ == "__main__":
    sys.exit(main())
