"""Formats of datasets."""
