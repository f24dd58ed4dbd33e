"""Benchmarks of plugins, in folders of their names."""
