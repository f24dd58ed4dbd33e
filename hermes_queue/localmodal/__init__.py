"""A server that the unmodified `modal` SDK takes for Modal; its sandboxes are local processes.

It answers the calls of the public protocol that `modal.App.lookup`, `modal.Image`,
`modal.Secret`, `modal.Volume` and `modal.Sandbox` make, and refuses every other one with
UNIMPLEMENTED. docs/localmodal.md says what it imitates and what it does not.

Importing this package loads neither `modal` nor `grpclib`; its modules do.
"""
