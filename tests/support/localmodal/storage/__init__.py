"""Volumes and snapshots.

snapshots.py    images of a sandbox's file system
store.py        the server's state: apps, images, secrets, sandboxes
volume_sync.py  copies a volume, run inside a sandbox
volumes.py      volumes of sandboxes
"""
