"""Containers beside a slot, in a network of their own."""
