"""Slugs of titles."""


def slug(title: str) -> str:
    """Lower case, with a hyphen in place of what is neither a letter nor a digit."""
    return "".join(c if c.isalnum() else "-" for c in title.lower())
