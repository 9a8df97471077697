"""The machine-readable Ticketing protocol and its generators."""
