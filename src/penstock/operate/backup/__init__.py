"""Archives of a data directory."""
