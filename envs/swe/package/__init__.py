"""What a repository says of its own package."""
