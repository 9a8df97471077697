"""Measures the server, beside Redis and against itself; `bench/run.py` is the command."""
