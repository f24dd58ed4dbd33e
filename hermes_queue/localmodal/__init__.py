"""A server that the unmodified `modal` SDK takes for Modal; its sandboxes are local processes.

    admission.py      how many sandboxes and calls at once
    box.py            one sandbox: a set of local processes
    commands.py       exec, stdin, output, exit codes
    control.py        apps, images, secrets
    enclosure.py      what a sandbox sees of the host
    file_tool.py      file operations, run inside a sandbox
    gvisor.py         sandboxes inside gVisor
    host.py           what the server needs of this machine
    listener.py       the sockets
    router.py         gRPC calls to methods
    sandbox_calls.py  calls about sandboxes
    server.py         start and stop
    wire.py           protobuf messages
    faults/           faults on demand
    storage/          volumes, snapshots, images

It answers the calls of the public protocol that `modal.App.lookup`, `modal.Image`,
`modal.Secret`, `modal.Volume` and `modal.Sandbox` make, and refuses every other one with
UNIMPLEMENTED. docs/localmodal.md says what it imitates and what it does not.

Importing this package loads neither `modal` nor `grpclib`; its modules do.
"""
