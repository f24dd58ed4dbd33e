"""Images that are really built and fetched, and sandboxes with their root file systems.

blobs.py      large files, sent by HTTP
builds.py     recipes become layers, through the host's store of images
calls.py      the calls of the protocol about images and uploads
enclosure.py  a sandbox whose root is an image
mounts.py     images mounted in running sandboxes
recipe.py     an image as the SDK describes it
uploads.py    files that clients upload for builds
"""
