"""Ways to a score without the fix."""
