"""`python -m ticketing_server` is `ticketing-server`."""

import sys

from ticketing_server.cli import main

sys.exit(main())
