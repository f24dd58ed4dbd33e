"""How sandboxes begin, are found, and end."""

from __future__ import annotations

import asyncio
import time

import modal
import pytest
from localmodal.enclosure import Enclosure


async def test_an_app_must_exist_or_be_asked_for(app):
    assert (await modal.App.lookup.aio("tests")).app_id == app.app_id
    with pytest.raises(modal.exception.NotFoundError):
        await modal.App.lookup.aio("never-made")


async def test_images_are_recorded_with_their_recipe(localmodal_server, create):
    image = modal.Image.from_registry("python:3.11-slim").run_commands("echo recorded")
    await create(image=image)
    store = localmodal_server._background.server.store
    recipes = ["\n".join(image.commands) for image in store.images.values()]
    assert any("FROM python:3.11-slim" in text and "echo recorded" in text for text in recipes)


async def test_tags_are_kept_replaced_and_searched(app, create):
    sandbox = await create(tags={"pool": "a", "slot": "0"})
    other = await create(tags={"pool": "b"})
    assert await sandbox.get_tags.aio() == {"pool": "a", "slot": "0"}
    await sandbox.set_tags.aio({"pool": "a", "busy": "1"})

    async def listed(**tags: str) -> set[str]:
        return {s.object_id async for s in modal.Sandbox.list.aio(app_id=app.app_id, tags=tags)}

    assert await listed(busy="1") == {sandbox.object_id}
    assert await listed(slot="0") == set()
    assert await listed() == {sandbox.object_id, other.object_id}


async def test_a_listed_sandbox_is_one_that_runs(app, create):
    sandbox = await create()
    await sandbox.terminate.aio()
    assert [s async for s in modal.Sandbox.list.aio(app_id=app.app_id)] == []


async def test_a_sandbox_is_attached_again_by_id_and_by_name(create, sh):
    sandbox = await create(name="one")
    await sh(sandbox, "echo here >/f")
    by_id = await modal.Sandbox.from_id.aio(sandbox.object_id)
    by_name = await modal.Sandbox.from_name.aio("tests", "one")
    assert await sh(by_id, "cat /f") == await sh(by_name, "cat /f") == "here"


async def test_a_name_is_taken_until_its_sandbox_ends(create):
    first = await create(name="one")
    with pytest.raises(modal.exception.AlreadyExistsError):
        await create(name="one")
    await first.terminate.aio()
    await create(name="one")


async def test_termination_is_seen_by_everybody(create, run, localmodal):
    sandbox = await create()
    process = await sandbox.exec.aio("bash", "-c", "echo alive; sleep 60")
    assert await anext(aiter(process.stdout)) == "alive\n"
    assert await sandbox.terminate.aio(wait=True) == 137
    with pytest.raises(modal.exception.NotFoundError):
        await process.wait.aio()
    with pytest.raises(modal.exception.Error):
        await run(sandbox, "true")
    assert await sandbox.poll.aio() == 137
    assert localmodal.running() == []


async def test_terminating_twice_is_no_error(create):
    sandbox = await create()
    await sandbox.terminate.aio()
    await sandbox.terminate.aio()


async def test_a_lifetime_ends_the_sandbox(create):
    sandbox = await create(timeout=1)
    with pytest.raises(modal.exception.SandboxTimeoutError):
        await sandbox.wait.aio()
    assert sandbox.returncode == 124


@pytest.mark.fleet
async def test_an_idle_sandbox_ends_and_a_busy_one_does_not(create, run):
    busy = await create(idle_timeout=5)
    working = asyncio.create_task(run(busy, "sleep", "6"))
    idle = await create(idle_timeout=1)
    await idle.wait.aio(raise_on_termination=False)
    assert await busy.poll.aio() is None
    assert (await working)[2] == 0


async def test_idleness_begins_when_a_sandbox_has_started(localmodal_server, create, monkeypatch):
    up = []
    start = Enclosure.start

    async def noted(enclosure):
        await start(enclosure)
        up.append(time.monotonic())

    monkeypatch.setattr(Enclosure, "start", noted)
    sandbox = await create(idle_timeout=300)
    box = localmodal_server._background.server.store.boxes[sandbox.object_id]
    assert [box._active_at >= moment for moment in up] == [True]


async def test_a_sandbox_with_a_process_of_its_own_ends_with_it(create):
    sandbox = await create("bash", "-c", "read x; echo got $x; exit 3")
    sandbox.stdin.write("word\n")
    await sandbox.stdin.drain.aio()
    await sandbox.wait.aio()
    assert await sandbox.stdout.read.aio() == "got word\n"
    assert sandbox.returncode == 3


async def test_readiness_is_what_the_probe_says(create):
    script = "until [ -e /go ]; do sleep 0.05; done; touch /ready; sleep 60"
    probe = modal.Probe.with_exec("test", "-f", "/ready")
    sandbox = await create("bash", "-c", script, readiness_probe=probe)
    waiting = asyncio.create_task(sandbox.wait_until_ready.aio(timeout=30))
    await sandbox.filesystem.write_text.aio("", "/go")
    await waiting


async def test_what_cannot_be_imitated_is_refused(create):
    with pytest.raises(modal.exception.Error, match="allowlists"):
        await create(outbound_cidr_allowlist=["10.0.0.0/8"])
    with pytest.raises(modal.exception.Error, match="GPU"):
        await create(gpu="T4")


async def test_an_unknown_sandbox_is_not_found(create, protocol):
    await create()
    with pytest.raises(modal.exception.NotFoundError):
        await modal.Sandbox.from_id.aio("sb-" + "0" * (22 if protocol == "0" else 26))


async def test_named_secrets_exist_or_do_not(create, sh):
    with pytest.raises(modal.exception.NotFoundError):
        await create(secrets=[modal.Secret.from_name("missing")])


@pytest.mark.parametrize("variable", ["MODAL_TOKEN_ID", "MODAL_TOKEN_SECRET"])
async def test_a_wrong_token_is_refused(localmodal, protocol, monkeypatch, variable):
    monkeypatch.setenv(variable, "wrong")
    with pytest.raises(modal.exception.AuthError):
        await modal.App.lookup.aio("tests", create_if_missing=True)


async def test_calls_that_are_not_supported_say_so(create):
    sandbox = await create()
    with pytest.raises(modal.exception.Error, match="not supported by localmodal"):
        await sandbox.tunnels.aio()


def test_blocking_calls_work_beside_other_loops(localmodal, protocol):
    app = modal.App.lookup("tests", create_if_missing=True)
    sandbox = modal.Sandbox.create(app=app, image=modal.Image.debian_slim())
    assert asyncio.run(sandbox.poll.aio()) is None
    process = sandbox.exec("echo", "hi")
    assert (process.stdout.read(), process.wait()) == ("hi\n", 0)


REFUSED = {
    "region": ({"region": "atlantis-1"}, modal.exception.InvalidError),
    "cloud": ({"cloud": "nimbus"}, modal.exception.InvalidError),
    "OIDC": ({"include_oidc_identity_token": True}, modal.exception.UnimplementedError),
    "enable_docker": (
        {"experimental_options": {"enable_docker": True}},
        modal.exception.UnimplementedError,
    ),
}


async def test_what_modal_refuses_or_we_do_not_have_is_refused(create):
    for what, (options, kind) in REFUSED.items():
        with pytest.raises(kind, match=f"(?i){what}"):
            await create(**options)
    placed = await create(region=["us-east", "eu-west-1"], cloud="aws")
    await placed.terminate.aio()
