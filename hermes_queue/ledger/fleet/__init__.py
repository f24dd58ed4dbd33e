"""What the workers of a fleet agree on."""
