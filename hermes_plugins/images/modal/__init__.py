"""Slots with images at Modal: one sandbox each, whose root file system is the image's."""
