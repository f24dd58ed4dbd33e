"""Threads and tasks that keep what a worker holds."""
