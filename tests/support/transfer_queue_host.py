"""A local Ray with an empty TransferQueue: prints Ray's address, and ends with its input."""

from __future__ import annotations

import os
import sys

os.environ.update(
    RAY_AUTH_MODE="disabled",
    RAY_USAGE_STATS_ENABLED="0",
    RAY_memory_monitor_refresh_ms="0",
    RAY_raylet_start_wait_time_s="200",
)
import ray
import transfer_queue as tq
from omegaconf import OmegaConf


def main() -> None:
    """Serve until the input ends."""
    # CPUs are what Ray hands out in its books: one for each of its actors.
    here = ray.init(
        num_cpus=4,
        include_dashboard=False,
        object_store_memory=80 * 2**20,
        _node_ip_address="127.0.0.1",
        log_to_driver=False,
        logging_level="error",
    )
    tq.init(OmegaConf.create({"backend": {"SimpleStorage": {"num_data_storage_units": 1}}}))
    print(here.address_info["gcs_address"], flush=True)
    sys.stdin.read()
    tq.close()
    ray.shutdown()


if __name__ == "__main__":
    main()
