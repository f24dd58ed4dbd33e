"""Commands that write results down."""
