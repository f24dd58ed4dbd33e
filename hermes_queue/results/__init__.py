"""The stream of results, read."""
