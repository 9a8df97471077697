"""`python -m ticketing_server.admin` is `ticketing-admin`."""

import sys

from ticketing_server.admin.cli import main

if __name__ == "__main__":
    sys.exit(main())
