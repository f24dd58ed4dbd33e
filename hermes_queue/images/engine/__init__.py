"""Images at a container engine.

client.py   the engine's API
hosted.py   images that the engine has, or pulls
build.py    images that it builds
archive.py  images from archives
"""
