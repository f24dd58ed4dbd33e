"""Injected faults, for tests of programs that use the server.

plan.py     planned faults of the next calls
service.py  the gRPC service through which tests plan faults
"""
