"""The factory against a third-party server that fails half of all calls."""
