"""The Python client of Ticketing."""
