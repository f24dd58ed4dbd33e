"""Parts of `python -m benchmarks`."""
