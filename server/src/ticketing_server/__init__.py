"""The Ticketing lock server."""
