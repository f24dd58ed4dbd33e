"""Images that are really built and fetched, and sandboxes with their root file systems.

blobs.py      large files, sent by HTTP
built.py      finds what builds images, which needs the plugin `images`
calls.py      the calls of the protocol about images and uploads
recipe.py     an image as the SDK describes it
uploads.py    files that clients upload for builds
"""
