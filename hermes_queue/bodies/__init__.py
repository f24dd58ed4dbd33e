"""A record as bytes."""
