"""Images from elsewhere: registries and archives.

documents.py  manifests and configurations, as the OCI describes them
blobs.py      compressed archives, and layers made of them
archives.py   import of `docker save` archives, OCI layouts and root file systems
registry.py   a client of registries
"""
