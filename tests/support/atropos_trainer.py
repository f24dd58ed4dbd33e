"""A trainer that only writes down what it was given: `python atropos_trainer.py URL LOG ...`.

It may be killed at any time; each line of its log is a batch that it has trained on.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import time
from urllib.parse import urlsplit


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("log")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--max-token-len", type=int, default=32768)
    parser.add_argument("--step-s", type=float, default=0.1)
    parser.add_argument("--gzip", action="store_true")
    arguments = parser.parse_args()
    with open(arguments.log, "a") as log:
        while True:
            try:
                train(arguments, log)
            except (OSError, http.client.HTTPException):
                time.sleep(0.2)


def train(arguments: argparse.Namespace, log) -> None:
    """Register, then take batches until the server is gone."""
    parts = urlsplit(arguments.url)
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=60)
    headers = {"Content-Type": "application/json", "X-Trainer": str(os.getpid())}

    def call(method: str, path: str, body=None):
        connection.request(method, path, body and json.dumps(body), headers)
        return json.loads(connection.getresponse().read())

    registration = {
        **{"wandb_group": "g", "wandb_project": "p", "checkpoint_dir": "/nowhere"},
        **{"batch_size": arguments.batch_size, "max_token_len": arguments.max_token_len},
        **{"save_checkpoint_interval": 10, "starting_step": 0, "num_steps": 10**6},
    }
    call("POST", "/register", registration)
    while True:
        batch = call("GET", "/batch")["batch"]
        if not batch:
            time.sleep(0.05)
            continue
        time.sleep(arguments.step_s)
        ids = [o["hermes_queue"]["trajectory_id"] for g in batch for o in g["overrides"]]
        log.write(json.dumps({"at": time.time(), "trainer": str(os.getpid()), "ids": ids}) + "\n")
        log.flush()
        os.fsync(log.fileno())


if __name__ == "__main__":
    main()
