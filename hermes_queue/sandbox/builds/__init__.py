"""Where assets are built."""
