"""Slots with the root file system of an image, on this host, without a container engine.

first_process.py  the program of a slot's first process
boot_process.py   the program that mounts a slot's layers
place.py          the host directories of one slot
fence.py          isolation of a slot
slot.py           one slot: its users and files
unlinked.py       what deleted files take that processes of a slot hold
slots.py          those of one backend, and their images
changes.py        in what a slot differs from its image
host.py           programs and ids that this needs of the host
steps.py          steps of image builds
"""
