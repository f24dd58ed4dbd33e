"""Names that are imported and never used."""

from . import functional  # noqa: F401, TID252


def __getattr__(name: str) -> type:
    return object
