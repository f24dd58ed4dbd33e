"""Calls of any OpenAI-compatible server."""
