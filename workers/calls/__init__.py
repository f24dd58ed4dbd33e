"""Permission to call a model."""
