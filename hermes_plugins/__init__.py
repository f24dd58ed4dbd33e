"""Optional features, one folder each: a folder holds its whole feature and declares it as `PLUGIN`.

Deleting a folder, its tests (`tests/plugins/NAME`), its page (`docs/plugins/NAME.md`) and its line
in `pyproject.toml` takes the feature away, and nothing else: `make test-without PLUGIN=NAME`.
"""
