"""Loads the package before any test loads gRPC, which reads its environment then."""

import ticketing_server.admin  # noqa: F401
