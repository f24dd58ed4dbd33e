"""Images: the root file systems that tasks bring along, with and without a container engine.

spec.py        an image as a task names it, its configuration, and what it is on disk
permission.py  names of images, and what a task may have from this worker
context.py     build contexts: the folder with a Dockerfile
dockerfile/    Dockerfiles: read, evaluated, rewritten
extra.py       the library that reads them
plan.py        where an image comes from: which stages and images a Dockerfile needs
steps.py       steps of a build, and the protocol of what runs them
build.py       builds of a plan's stages, layer by layer
copying.py     the sources of COPY and ADD
users.py       users of an image
layers.py      layers on this host's disk: made, pinned, deleted
names.py       the images that this host has by name
store.py       images for slots: had by name, or built
fetch/         images from registries and archives
base_image.py  base images made of Debian's packages
record_packages.py  what pip has to know of the packages of Debian in one
inside/        the program that works on an image's files
"""
