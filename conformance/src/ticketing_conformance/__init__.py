"""The harness that drives every Ticketing client."""
