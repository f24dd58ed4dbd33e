"""A local Ray with an empty TransferQueue, in a network of its own, since it listens everywhere.

Every line of its input is a command as a JSON list, which it runs beside Ray with Ray's address
in RAY_ADDRESS; the answer is a line of JSON with `returncode`, `stdout` and `stderr`.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import struct
import subprocess
import sys

COMMAND = ("unshare", "--map-root-user", "--net", sys.executable, "-W", "ignore", __file__)
"""Starts it; needs user namespaces."""
ANSWER = "answer "
"""Begins a line of ours."""
_SIOCSIFFLAGS, _IFF_UP = 0x8914, 1
_TIMEOUT_S = 300


def main() -> None:
    """Serve until the input ends."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        fcntl.ioctl(control, _SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", _IFF_UP))
    os.environ.update(
        RAY_AUTH_MODE="disabled",
        RAY_USAGE_STATS_ENABLED="0",
        RAY_memory_monitor_refresh_ms="0",
        RAY_raylet_start_wait_time_s="200",
    )
    import ray
    import transfer_queue as tq
    from omegaconf import OmegaConf

    # CPUs are what Ray hands out in its books: one for each of its actors.
    here = ray.init(
        num_cpus=4,
        include_dashboard=False,
        object_store_memory=80 * 2**20,
        log_to_driver=False,
        logging_level="error",
    )
    tq.init(OmegaConf.create({"backend": {"SimpleStorage": {"num_data_storage_units": 1}}}))
    os.environ["RAY_ADDRESS"] = here.address_info["gcs_address"]
    for line in sys.stdin:
        ended = subprocess.run(json.loads(line), capture_output=True, text=True, timeout=_TIMEOUT_S)
        found = {name: getattr(ended, name) for name in ("returncode", "stdout", "stderr")}
        print(ANSWER + json.dumps(found), flush=True)
    tq.close()
    ray.shutdown()


if __name__ == "__main__":
    main()
