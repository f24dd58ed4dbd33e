"""`hermes-queue images`."""
