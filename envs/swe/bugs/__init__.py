"""Procedural bugs: small, validated defects in a package that its own test suite notices."""
