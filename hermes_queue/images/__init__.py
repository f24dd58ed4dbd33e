"""Images: the root file systems that tasks bring along, with and without a container engine.

spec.py       an image as a task names it, and its configuration
"""
