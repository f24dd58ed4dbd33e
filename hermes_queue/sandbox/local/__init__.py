"""Slots on this host."""
