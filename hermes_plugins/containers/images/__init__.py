"""Images at a container engine."""
