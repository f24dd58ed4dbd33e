"""One prefix in one Redis."""
