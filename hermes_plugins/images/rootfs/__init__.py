"""Slots with the root file system of an image, on this host, without a container engine."""
