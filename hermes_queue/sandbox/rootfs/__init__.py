"""Slots with the root file system of an image, on this host, without a container engine.

first_process.py  the program of a slot's first process
boot_process.py   the program that mounts a slot's layers
place.py          the host directories of one slot
fence.py          isolation of a slot
slot.py           one slot: its users and files
host.py           programs and ids that this needs of the host
steps.py          steps of image builds
"""
