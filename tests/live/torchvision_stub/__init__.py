"""Stands in for torchvision, which SGLang imports also where it serves text models only."""

from . import io, transforms  # noqa: F401, TID252 - copied to where no package of ours is

__version__ = "0.0"
