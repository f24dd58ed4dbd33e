"""A trainer of the Atropos API whose weights are the list of trajectories it was trained on.

    python atropos_resuming_trainer.py URL DIRECTORY SAVE_EVERY

It saves `step_{n}.json` after every so many steps. When it starts, and when the server refuses it,
it goes on from the newest of these and registers with its step. Like the trainers in use it opens a
connection for each request, and repeats a request that failed.
"""

from __future__ import annotations

import http.client
import json
import sys
import time
from pathlib import Path
from urllib.parse import urlsplit

STEP_S = 0.05
REGISTRATION = {
    **{"wandb_group": "g", "wandb_project": "p", "checkpoint_dir": "/nowhere"},
    **{"batch_size": 32, "max_token_len": 32768, "num_steps": 10**6},
}


class Refused(Exception):
    """The server wants us to register again."""


def call(url: str, method: str, path: str, body: object = None):
    """One request, repeated until it is answered."""
    parts = urlsplit(url)
    while True:
        connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=10)
        try:
            headers = {"Content-Type": "application/json"}
            connection.request(method, path, body and json.dumps(body), headers)
            response = connection.getresponse()
            text = response.read()
        except (OSError, http.client.HTTPException):
            time.sleep(0.1)
            continue
        finally:
            connection.close()
        if response.status == 409:
            raise Refused(text)
        if response.status == 200:
            return json.loads(text)
        time.sleep(0.1)


def newest(directory: Path) -> dict:
    saved = [int(path.stem.partition("_")[2]) for path in directory.glob("step_*.json")]
    if not saved:
        return {"step": 0, "ids": []}
    return json.loads((directory / f"step_{max(saved)}.json").read_text())


def train(url: str, directory: Path, save_every: int) -> None:
    weights = newest(directory)
    registration = {**REGISTRATION, "save_checkpoint_interval": save_every}
    call(url, "POST", "/register", {**registration, "starting_step": weights["step"]})
    while True:
        batch = call(url, "GET", "/batch")["batch"]
        if not batch:
            time.sleep(0.05)
            continue
        time.sleep(STEP_S)
        ids = [o["hermes_queue"]["trajectory_id"] for g in batch for o in g["overrides"]]
        weights = {"step": weights["step"] + 1, "ids": weights["ids"] + ids}
        if weights["step"] % save_every == 0:
            draft = directory / "draft"
            draft.write_text(json.dumps(weights))
            draft.rename(directory / f"step_{weights['step']}.json")


def main() -> None:
    url, directory, save_every = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    while True:
        try:
            train(url, directory, save_every)
        except Refused:
            time.sleep(0.2)


if __name__ == "__main__":
    main()
