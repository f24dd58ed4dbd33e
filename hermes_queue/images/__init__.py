"""Images: the root file systems that tasks bring along, with and without a container engine.

spec.py       an image as a task names it, its configuration, and what it is on disk
steps.py      steps of a build, and the protocol of what runs them
"""
