"""Commands that show a deployment at work."""
