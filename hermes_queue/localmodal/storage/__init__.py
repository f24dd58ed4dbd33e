"""Volumes and snapshots.

snapshots.py    images of a sandbox's file system
store.py        what the server knows: apps, images, secrets
volume_sync.py  copies a volume, run inside a sandbox
volumes.py      volumes of sandboxes
"""
