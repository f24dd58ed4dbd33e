"""A Modal-compatible server for the unmodified `modal` SDK; its sandboxes are local processes.

    admission.py      refuses sandboxes that Modal would refuse, or that we cannot provide
    box.py            one sandbox: a set of local processes
    commands.py       exec, stdin, output, exit codes
    control.py        apps, images, secrets
    enclosure.py      isolation and files of a sandbox
    file_tool.py      file operations, run inside a sandbox
    gvisor.py         sandboxes inside gVisor
    host.py           the host's programs, ids and directories
    listener.py       the sockets
    router.py         commands in a sandbox, snapshots, mounts
    sandbox_calls.py  calls about sandboxes
    server.py         start and stop
    wire.py           protobuf messages
    faults/           injected faults
    rooted/           images that are built, and their sandboxes
    storage/          volumes, snapshots, the state

It answers the calls of the public protocol that `modal.App.lookup`, `modal.Image`,
`modal.Secret`, `modal.Volume` and `modal.Sandbox` make, and refuses every other one with
UNIMPLEMENTED. docs/localmodal.md describes what it imitates and what it does not.

`make localmodal` starts it by itself; tests take it from the fixtures of `modal_server`.
"""
