"""Sandbox backends: compute turned into slots."""
