"""Faults on demand, for tests of whoever uses the server.

plan.py     which calls fail next, and how
service.py  the gRPC service through which tests plan them
"""
