"""One module per language that constants are generated for."""
