"""Dockerfiles: read, evaluated, and rewritten for builders that know less than BuildKit.

expansion.py     variables in words, bounded
instructions.py  the text as stages and instructions
evaluation.py    what a stage does, given the image that it starts from
old_engines.py   the same Dockerfile for builders without heredocs
"""
