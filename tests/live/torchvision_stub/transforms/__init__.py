"""Names that are imported and never used."""

from . import functional, v2  # noqa: F401, TID252


class InterpolationMode:
    NEAREST = NEAREST_EXACT = BILINEAR = BICUBIC = LANCZOS = BOX = HAMMING = "stub"


def __getattr__(name: str) -> type:
    return object
