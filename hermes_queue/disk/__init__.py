"""Durable and locked files."""
