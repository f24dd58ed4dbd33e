"""Tasks with images of their own.

images.py    `images ...`: the images of this host
validate.py  `tasks validate`
"""
