"""Names that are imported and never used."""


def __getattr__(name: str) -> type:
    return object
