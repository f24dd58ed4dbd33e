"""From rows to a finished run."""
