"""The trainer's side of the Atropos protocol, served from the results stream."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import struct
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from atropos_api import Trainer, call, provenance
from sink_process import SinkProcess

from hermes_plugins.atropos_server import http as atropos_http
from hermes_plugins.atropos_server.options import AtroposServerOptions
from hermes_plugins.atropos_server.server import TrainerServer
from hermes_queue.errors import ConfigurationError
from hermes_queue.ledger import Ledger
from hermes_queue.ledger.policy import set_version, version_of
from hermes_queue.models import Message

pytestmark = pytest.mark.xdist_group("sinks")


class Served:
    """A server in this process; it is an `api` for `Trainer`."""

    def __init__(self, server: TrainerServer) -> None:
        self.server = server
        self.port = 0
        self.task = asyncio.create_task(server.run())

    async def listening(self) -> Served:
        await asyncio.wait({self.task, self.server.port}, return_when=asyncio.FIRST_COMPLETED)
        if self.task.done():
            await self.task
        self.port = self.server.port.result()
        return self

    async def serving(self) -> Served:
        """Wait until it does more than listen."""
        async with asyncio.timeout(20):
            while self.server._routes is None and not self.task.done():
                await asyncio.sleep(0.01)
        if self.task.done():
            await self.task
        return self

    async def call(self, method: str, path: str, body: Any = None) -> Any:
        return await asyncio.to_thread(call, self.port, method, path, body)

    async def register(self, starting_step: int = 0, batch_size: int = 8, **more: Any) -> Any:
        said = {
            **{"wandb_group": "g", "wandb_project": "p", "checkpoint_dir": "/nowhere"},
            **{"batch_size": batch_size, "max_token_len": 1024, "num_steps": 1000},
            **{"save_checkpoint_interval": 2, "starting_step": starting_step},
        }
        return await self.call("POST", "/register", {**said, **more})

    async def batch(self) -> list[dict[str, Any]]:
        """The next batch, however often there is none before."""
        async with asyncio.timeout(20):
            while not (found := (await self.call("GET", "/batch"))["batch"]):
                await asyncio.sleep(0.02)
        return found

    async def ids(self) -> list[str]:
        return provenance(await self.batch())

    async def ready(self, groups: int) -> None:
        """Wait until so many groups wait for the next batch."""
        async with asyncio.timeout(20):
            while (await self.call("GET", "/status"))["queue_size"] < groups:
                await asyncio.sleep(0.02)

    async def dies(self) -> None:
        """End as by a crash: nothing is said, nothing is acknowledged any more."""
        self.task.cancel()
        await asyncio.wait({self.task})

    async def ends(self) -> dict[str, Any]:
        self.server.stop()
        return await self.task


Serve = Callable[..., Any]


@pytest.fixture
async def serve(ledger: Ledger, tmp_path: Path) -> AsyncIterator[Serve]:
    """Starts servers of groups of four on any port; those that still run are ended."""
    started: list[Served] = []

    async def begin(*, waits: bool = False, **options: object) -> Served:
        chosen = {"run_id": "run", "directory": tmp_path / "checkpoints", "group_size": 4}
        chosen |= {"port": 0, "redis_url": ledger.url, "batches_per_pull": 0}
        started.append(Served(TrainerServer(AtroposServerOptions(**{**chosen, **options}))))
        listening = await started[-1].listening()
        return listening if waits else await listening.serving()

    yield begin
    for each in started:
        each.server.stop()
        with contextlib.suppress(asyncio.CancelledError, ConfigurationError):
            await each.task


def pending(ledger: Ledger) -> int:
    """Groups that were delivered to the server or wait for it."""
    [group] = [g for g in ledger.client.xinfo_groups("hq:results") if g["name"] != b"atropos"]
    unread = ledger.client.xrange("hq:results", min=f"({group['last-delivered-id'].decode()}")
    return int(group["pending"]) + len(unread)


async def arrived(directory: Path, step: int) -> None:
    """Wait until the server has written down that the batch of this step has arrived."""
    state = directory / "checkpoints" / "hermes_queue.atropos.json"
    await until(lambda: json.loads(state.read_text())["delivered"] == step)


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.01)


async def test_it_answers_as_the_archived_server_before_a_trainer_registers(api, serve):
    served = await serve()
    for path in ("/", "/info", "/wandb_info", "/status", "/latest_example", "/batch"):
        ours = await served.call("GET", path)
        assert ours == call(api.port, "GET", path), path


async def test_a_trainer_gets_from_it_what_the_archived_server_would_give(
    api, trainer, put, start, serve
):
    served = await serve(run_id="run")
    for each in (served, api):
        await asyncio.to_thread(Trainer(each).begin)
    put("one"), put("two")
    start()
    archived, ours = await trainer.next_batch(), await served.batch()
    for group in (*archived, *ours):
        assert group["group_overrides"].pop("group_size") == 4
        assert group["group_overrides"].pop("hermes_queue")
    assert ours == archived
    assert json.dumps(ours[0]["inference_logprobs"]) == json.dumps(
        archived[0]["inference_logprobs"]
    )
    for path in ("/info", "/wandb_info"):
        assert await served.call("GET", path) == call(api.port, "GET", path)
    latest = await served.call("GET", "/latest_example")
    assert latest.keys() == call(api.port, "GET", "/latest_example").keys()
    assert latest["tokens"] == ours[-1]["tokens"]
    assert (await served.call("GET", "/status"))["current_step"] == 1


@pytest.mark.parametrize("first", ["trainer", "groups"])
async def test_trainer_and_groups_may_come_in_any_order(put, serve, first):
    served = await serve()
    ids = [] if first == "trainer" else put("one") + put("two")
    assert (await served.register())["uuid"]
    if first == "trainer":
        assert await served.call("GET", "/batch") == {"batch": None}
        ids = put("one") + put("two")
    assert await served.ids() == ids


async def test_a_batch_stays_unacknowledged_until_the_trainer_asks_for_the_next(ledger, put, serve):
    put("one"), put("two")
    served = await serve()
    await served.register()
    await served.batch()
    assert pending(ledger) == 2
    assert await served.call("GET", "/batch") == {"batch": None}
    await until(lambda: pending(ledger) == 0)


async def test_a_trainer_that_pulls_until_there_is_none_gets_one_batch_at_a_time(
    ledger, put, serve
):
    ids = [put(f"g{n}") for n in range(4)]
    served = await serve(batches_per_pull=1)
    await served.register()
    assert await served.ids() == ids[0] + ids[1]
    assert await served.call("GET", "/batch") == {"batch": None}
    assert pending(ledger) == 4  # it has not trained: it only looked whether there is more
    assert await served.ids() == ids[2] + ids[3]
    assert pending(ledger) == 2


@pytest.mark.parametrize("has", [0, 1])
async def test_a_restarted_trainer_gets_what_its_weights_do_not_hold(ledger, put, serve, has):
    ids = [put(f"g{n}") for n in range(4)]
    served = await serve()
    await served.register()
    first = await served.batch()
    await served.register(starting_step=has)
    again = await served.batch()
    if has:
        assert provenance(again) == ids[2] + ids[3]
    else:
        assert again == first


async def test_after_a_checkpoint_the_trainer_gets_the_later_batches_again(ledger, put, serve):
    ids = [put(f"g{n}") for n in range(6)]
    served = await serve(ack="interval")
    await served.register()
    for _ in range(3):
        await served.batch()
    assert pending(ledger) == 2  # the trainer saves after every second step
    await served.register(starting_step=2)
    assert await served.ids() == ids[4] + ids[5]


@pytest.mark.parametrize("dies", ["server", "process"])
async def test_a_server_that_dies_knows_its_trainer_and_what_it_has(
    ledger, put, serve, tmp_path, dies
):
    ids = [put(f"g{n}") for n in range(4)]
    options = ["--run", "run", "--group-size", "4", "--directory", tmp_path / "checkpoints"]
    if dies == "process":
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        with SinkProcess(ledger, "atropos-server", *options, "--port", port) as first:
            served = Served.__new__(Served)
            served.port = port
            async with asyncio.timeout(30):
                while True:
                    assert first.poll() is None, first.printed()
                    with contextlib.suppress(OSError, RuntimeError):
                        await served.register()
                        break
                    await asyncio.sleep(0.05)
            assert await served.ids() == ids[0] + ids[1]
            await arrived(tmp_path, 1)
        ledger.client.delete("hq:sink:atropos-server:server")  # it would expire in ten seconds
    else:
        served = await serve()
        await served.register()
        assert await served.ids() == ids[0] + ids[1]
        await arrived(tmp_path, 1)
        await served.dies()
    second = await serve()
    assert (await second.call("GET", "/info"))["batch_size"] == 8
    assert (await second.call("GET", "/status"))["current_step"] == 1
    assert pending(ledger) == 4
    assert await second.ids() == ids[2] + ids[3]
    await until(lambda: pending(ledger) == 2)


async def test_a_new_server_answers_first_that_there_is_no_batch_more_to_pull(
    ledger, put, serve, tmp_path
):
    ids = [put(f"g{n}") for n in range(4)]
    options = {"ack": "interval", "batches_per_pull": 1}
    served = await serve(**options)
    await served.register(save_checkpoint_interval=1)
    assert await served.ids() == ids[0] + ids[1]
    await arrived(tmp_path, 1)
    await served.dies()
    second = await serve(**options)
    assert await second.call("GET", "/batch") == {"batch": None}
    assert pending(ledger) == 4  # the trainer has not trained yet
    assert await second.ids() == ids[2] + ids[3]
    await until(lambda: pending(ledger) == 2)


@pytest.mark.parametrize("in_doubt", ["again", "refuse"])
async def test_a_batch_on_its_way_when_the_server_died_comes_again_or_is_asked_for(
    put, serve, in_doubt, tmp_path
):
    ids = [put(f"g{n}") for n in range(4)]
    served = await serve()
    await served.register()
    await served.batch()
    await arrived(tmp_path, 1)
    await served.dies()
    state = tmp_path / "checkpoints" / "hermes_queue.atropos.json"
    state.write_text(json.dumps({**json.loads(state.read_text()), "delivered": 0}))
    second = await serve(in_doubt=in_doubt)
    if in_doubt == "again":
        assert await second.ids() == ids[0] + ids[1]
        return
    with pytest.raises(RuntimeError, match=r"409 .*so that it registers with the step"):
        await second.call("GET", "/batch")
    await second.register(starting_step=1)
    assert await second.ids() == ids[2] + ids[3]


async def test_an_outage_of_redis_loses_and_repeats_nothing(ledger, put, serve, redis_server):
    ids = [put(f"g{n}") for n in range(4)]
    served = await serve()
    await served.register()
    assert await served.ids() == ids[0] + ids[1]
    redis_server.kill9()
    asked = asyncio.create_task(served.ids())
    await asyncio.sleep(0.2)
    redis_server.start()
    assert await asked == ids[2] + ids[3]
    ids = put("g4") + put("g5")
    assert await served.ids() == ids
    assert pending(ledger) == 2


class Connection:
    """A client's connection, which can be torn down."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=20)
        self._socket.sendall(b"GET /batch HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")

    def read(self, until: bytes) -> None:
        """Read the answer up to these bytes at least."""
        found = b""
        while until not in found:
            found += self._socket.recv(1 << 16)

    def tear(self) -> None:
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._socket.close()


async def half_read(serve: Serve, until: bytes) -> tuple[Served, Connection]:
    """A server whose first batch, of two groups, a connection has read up to these bytes."""
    served = await serve()
    await served.register()
    await served.ready(2)
    client = Connection(served.port)
    await asyncio.to_thread(client.read, until)
    return served, client


async def test_a_batch_that_a_client_did_not_read_is_handed_out_again(put, serve):
    ids = [put(f"g{n}") for n in range(4)]
    served, client = await half_read(serve, b"200 OK")
    client.tear()
    assert await served.ids() == ids[0] + ids[1]
    assert await served.ids() == ids[2] + ids[3]


async def test_a_connection_that_breaks_after_the_next_request_brings_nothing_back(put, serve):
    ids = [put(f"g{n}") for n in range(2)]
    served, client = await half_read(serve, b"]}]}")
    assert await served.call("GET", "/batch") == {"batch": None}
    client.tear()
    ids = [put(f"g{n}") for n in range(2, 4)]
    assert await served.ids() == ids[0] + ids[1]


async def test_a_client_that_asks_on_another_connection_at_once_gets_the_next_batch(
    put, serve, monkeypatch
):
    monkeypatch.setattr(atropos_http, "_POLL_S", 0.2)  # what its host confirms is seen late

    def lengthened(record):
        said = Message(role="assistant", content="x" * 500_000)
        return record.model_copy(update={"messages": (*record.messages, said)})

    ids = [put(f"g{n}", change=lengthened) for n in range(8)]
    served = await serve(messages=True)
    await served.register()
    await served.ready(2)
    for n in range(4):
        assert await served.ids() == ids[2 * n] + ids[2 * n + 1]


async def test_a_checkpoint_file_makes_its_batches_the_trainers(ledger, put, serve, tmp_path):
    for n in range(6):
        put(f"g{n}")
    path = tmp_path / "step_{step}.json"
    old = tmp_path / "step_3.json"
    old.write_text("of an earlier training")
    served = await serve(ack="file", checkpoint=str(path))
    await served.register()
    for _ in range(3):
        await served.batch()
    assert await served.call("GET", "/batch") == {"batch": None}
    assert pending(ledger) == 6
    (tmp_path / "step_2.json").write_text("weights")
    await until(lambda: pending(ledger) == 2)
    old.write_text("weights of this one, of another time")
    await until(lambda: pending(ledger) == 0)


async def test_a_reset_forgets_the_trainer_and_nothing_else(ledger, put, serve):
    put("one"), put("two")
    served = await serve()
    await served.register()
    first = await served.batch()
    assert await served.call("GET", "/reset_data") == b"Reset successful"
    assert (await served.call("GET", "/info"))["batch_size"] == -1
    assert (await served.call("GET", "/batch"))["status"] == "error"
    await served.register()
    assert await served.batch() == first


async def test_a_late_answer_to_the_last_trainer_says_nothing_of_the_next_one(
    put, serve, monkeypatch, tmp_path
):
    put("one"), put("two")
    served = await serve()
    await served.register()
    await served.batch()
    await arrived(tmp_path, 1)
    batches = served.server._routes._batches
    late, begin = batches.last, batches._file.begin
    await until(lambda: late.delivered)
    late.delivered = False

    def arrives_meanwhile(progress):
        begin(progress)
        batches.delivered(late)

    monkeypatch.setattr(batches._file, "begin", arrives_meanwhile)
    await served.register()
    assert batches.progress.delivered == 0


async def test_batches_that_groups_cannot_fill_are_refused_at_registration(put, serve):
    put("one")
    served = await serve()
    with pytest.raises(RuntimeError, match=r"409 .*cannot be made of groups of 4"):
        await served.register(batch_size=6)
    with pytest.raises(RuntimeError, match="422"):
        await served.register(batch_size=0)
    with pytest.raises(RuntimeError, match="422"):
        await served.call("POST", "/register", {"batch_size": 8})


async def test_a_trainer_with_a_lower_limit_gets_nothing_that_was_ready_for_the_last_one(
    ledger, put, serve
):
    put("one"), put("two")
    served = await serve()
    await served.register()
    await served.ready(2)
    await served.register(max_token_len=2)
    assert await served.call("GET", "/batch") == {"batch": None}
    assert ledger.client.xlen("hq:dead") == 2


async def test_groups_need_not_be_a_power_of_two(put, serve):
    ids = put("one", (0.0, 1.0, 0.5)) + put("two", (1.0, 0.0, 0.5))
    served = await serve(group_size=3)
    await served.register(batch_size=6)
    assert await served.ids() == ids


async def test_a_group_of_another_size_is_a_dead_letter_and_stops_nobody(ledger, put, serve):
    put("odd", (0.0, 1.0, 0.5))
    ids = put("one") + put("two")
    served = await serve()
    await served.register()
    assert await served.ids() == ids
    assert ledger.client.xlen("hq:dead") == 1
    assert (await served.ends())["refused_group_size"] == 1


async def test_a_group_that_is_too_old_when_it_is_asked_for_is_dropped(ledger, put, serve):
    def sampled_by(version: int):
        def change(record):
            turns = tuple(t.model_copy(update={"policy_version": None}) for t in record.turns)
            return record.model_copy(update={"turns": turns, "policy_begun": version})

        return change

    put("old", change=sampled_by(0))
    served = await serve(max_lag=1)
    await served.register(batch_size=4)
    await served.ready(1)
    set_version(ledger, "run", 2)
    ids = put("new", change=sampled_by(2))
    assert await served.ids() == ids
    assert (await served.ends())["dropped"] == 1


async def test_the_step_becomes_the_policy_version_when_the_trainer_goes_on(ledger, put, serve):
    for n in range(3):
        put(f"g{n}")
    served = await serve(publish_every=2)
    await served.register(batch_size=4)
    for _ in range(3):
        await served.batch()
    assert version_of(ledger, "run") == 2


async def test_a_trainer_ahead_of_everything_handed_out_is_refused(put, serve):
    put("one"), put("two")
    served = await serve()
    await served.register()
    await served.batch()
    with pytest.raises(RuntimeError, match=r"409 .*belongs to another training"):
        await served.register(starting_step=7)


async def test_environments_are_told_where_groups_come_from(serve):
    served = await serve()
    for method, path in [
        ("POST", "/register-env"),
        ("POST", "/scored_data"),
        ("POST", "/scored_data_list"),
        ("GET", "/status-env"),
        ("POST", "/disconnect-env"),
    ]:
        with pytest.raises(RuntimeError, match=r"410 .*results stream"):
            await served.call(method, path, {"env_id": 0})


async def test_a_second_server_waits_until_the_first_one_is_gone(put, serve, ledger, tmp_path):
    served = await serve()
    await served.register()
    other = await serve(waits=True, directory=tmp_path / "other")
    assert await other.call("GET", "/batch") == {"batch": None}
    with pytest.raises(RuntimeError, match="503"):
        await other.register()
    await served.ends()
    async with asyncio.timeout(20):
        while True:
            with contextlib.suppress(RuntimeError):
                await other.register()
                break
            await asyncio.sleep(0.05)


async def test_a_damaged_state_is_named_and_left_alone(serve, tmp_path):
    path = tmp_path / "checkpoints" / "hermes_queue.atropos.json"
    path.parent.mkdir()
    path.write_text("{")
    with pytest.raises(ConfigurationError, match=r"atropos\.json: cannot be read"):
        await serve()
    assert path.read_text() == "{"
