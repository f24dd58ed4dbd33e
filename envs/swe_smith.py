"""SWE-smith: repair a bug in a real package, graded by the package's own tests.

`envs/swe/` holds the parts.

The agent gets an export of the bug's tree with one commit and without the files that hold
FAIL_TO_PASS tests. Its result is a patch to the package's own files. The worker applies that
patch to the pinned tree with all tests, which then run in the emptied slot. The score is 1.0 if
every FAIL_TO_PASS and PASS_TO_PASS test is reported as passed and every planted failure as
failed, else 0.0.

`reason` in a verdict's report is one of resolved, tests_fail, timed_out, cut_short (the test run
ended early, but not with the known fix), canary (the run lied), does_not_apply, too_large,
malformed, unreadable; `detail` explains it. `flags` lists suspicious words in the patch.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import sys
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from envs.base import ReadAsset, Verdict
from envs.swe.calls import apply_commands, terminal_calls
from envs.swe.cheats import tamper
from envs.swe.grading import suite
from envs.swe.grading.controls import RowMemory
from envs.swe.grading.flags import find_flags
from envs.swe.grading.grader import Grader
from envs.swe.images import hidden
from envs.swe.images.pinning import known_pin, pin_image
from envs.swe.images.source import ImageSource
from envs.swe.item import Item as Row
from envs.swe.package.distribution import SHELL_PATH, place
from envs.swe.patch import (
    AgentPatch,
    ExtractionFailed,
    Rejected,
    take_patch,
    uncounted,
)
from envs.swe.recorded import apply_recorded, recorded_patch
from envs.swe.sources import asset_reader
from envs.swe.taken import TakenPatch
from envs.swe.workspace import Pinned, fill, pin
from hermes_queue.errors import EnvBug, SandboxError, WorkLost
from hermes_queue.images.spec import ImageSpec
from hermes_queue.models import Message, ScoredTrajectory, ToolCall
from hermes_queue.sandbox.base import WORKSPACE, SlotSpec
from hermes_queue.sandbox.context import SlotContext

REPORTED_PATCH_BYTES = 256 << 10
FLAGGED_PATHS = 50
"""Number of changed files whose old text is read, to find words that were there before."""

SYSTEM = (
    "You are a software engineer who repairs Python packages. You work in a sandbox through the "
    "tools you are given; commands must not wait for input."
)

TASK = """\
The Python package in {workspace} has a bug. This is the report:

<report>
{statement}
</report>

Find the cause and repair the package's source code.

- The repository's root is {workspace}, a git repository with one commit.
- Run tests from there with
    {command}
  (add files or ids of tests; {venv}/bin/python has the dependencies, and they cannot be
  changed). The package is imported from the source tree, it needs no installation.
- Your work is graded by tests you do not have.
{uncounted}
- When you are done, {ending}.
"""
IMAGE_TASK = """\
The Python repository in {workspace} has a bug. This is the report:

<report>
{statement}
</report>

Find the cause and repair the source code.

- {workspace} is a git repository with one commit.
- Run tests from there with
    {command}
  (add files or ids of tests). The repository and its dependencies are installed; there is no
  network.
- Your work is graded by tests you do not have, in a fresh copy of this machine with your changes
  to the repository's own files. Everything outside the repository is not looked at.
{uncounted}
- When you are done, {ending}.
"""
"""The task of rows whose environment is an image."""
COMMANDS = {
    "pytest": ("-m", "pytest"),
    "unittest": ("-m", "unittest"),
    "django": ("tests/runtests.py", "--settings=test_sqlite"),
    "sympy": ("bin/test", "-C"),
}
"""Runner of an image's tests -> arguments of the interpreter."""
SUBMIT = "call the tool `submit`"
STOP = "end your work. Commands must not wait for input"
"""For programs, whose tools are not ours and which do not see `SYSTEM`."""


class SweSmith:
    """The env of SWE-smith, see the module's docstring. Stateless."""

    name: ClassVar[str] = "swe_smith"
    version: ClassVar[str] = "3"
    tools: ClassVar[Sequence[str]] = tuple(
        "terminal process read_file write_file patch search_files submit".split()
    )
    Item: type[Row] = Row

    def prompt(self, item: Row) -> list[Message]:
        """The report and instructions; names no test that grades."""
        task = _task(item, SUBMIT)
        return [Message(role="system", content=SYSTEM), Message(role="user", content=task)]

    def task(self, item: Row) -> str:
        """The same for a program with tools of its own."""
        return _task(item, STOP)

    def spec(self, item: Row, profile: str) -> SlotSpec:
        """A slot with the row's image, or with its Python and dependencies."""
        if isinstance(item.source, ImageSource):
            return SlotSpec(
                profile=profile,
                image=ImageSpec(reference=item.source.reference),
                env=(("PATH", item.source.path),),
                cpus=item.source.cpus,
                memory_mb=item.source.memory_mb,
                disk_mb=item.source.disk_mb,
                workdir=item.source.workdir,
            )
        own = f"{sys.version_info.major}.{sys.version_info.minor}"
        runtime = item.environment
        venv = suite.venv_asset(runtime, runtime.python or own)
        return SlotSpec(
            profile=profile, assets=(venv,), python=runtime.python, conceal=item.import_names
        )

    async def prepare_ahead(self, item: Row, read_asset: ReadAsset) -> None:
        """Fetch the row's source and make its trees; raises the same as `setup`."""
        if not isinstance(item.source, ImageSource):  # which is read in a slot
            await pin(item, read_asset)

    async def setup(self, item: Row, context: SlotContext) -> None:
        """Fill the slot with the agent's starting tree.

        Raises:
            EnvBug: the row does not fit its source, or its tests do not pass with the known fix.
            EnvInfraError: the source cannot be fetched.
        """
        image = context.slot.image if isinstance(item.source, ImageSource) else None
        await _refuse_known_fault(item, image)
        pinned = await _pin(item, context)
        if pinned.image is not None and (known := await hidden.known_row(item, pinned)) is not None:
            await _refuse_known_fault(known, image)
        await fill(context, pinned, pinned.start)
        if pinned.image is None:
            await place(context, pinned.distribution)

    async def verify(
        self, item: Row, context: SlotContext, transcript: Sequence[Message]
    ) -> Verdict:
        """Take the agent's patch, then test the pinned tree with it in the emptied slot."""
        own = context.slot.spec
        pinned = await _pin_beside_the_agent(item, context)
        async with pinned.scratch() as scratch:
            patch = await self._taken(item, context, scratch, own)
            return await self._measured(item, context, scratch, own, patch)

    async def take_work(
        self, item: Row, context: SlotContext, transcript: Sequence[Message]
    ) -> bytes:
        """Take the agent's patch, all that `verify` looks at."""
        own = context.slot.spec
        pinned = await _pin_beside_the_agent(item, context)
        async with pinned.scratch() as scratch:
            patch = await self._taken(item, context, scratch, own)
        if context.slot.spec != own:
            await context.renew(own)
        return replace(patch, trees=pinned.trees).packed()

    async def measure_work(self, item: Row, context: SlotContext, work: bytes) -> Verdict:
        """Test the pinned tree with the patch in a slot that is emptied first.

        Raises WorkLost, too: the image's name stands for another image on this host.
        """
        own, patch = context.slot.spec, TakenPatch.unpacked(work)
        pinned = await _pin_beside_the_agent(item, context)
        if patch.trees and patch.trees != pinned.trees:
            raise WorkLost("the patch was made for other files than this worker's image has")
        async with pinned.scratch() as scratch:
            return await self._measured(item, context, scratch, own, patch)

    async def _taken(
        self, item: Row, context: SlotContext, pinned: Pinned, own: SlotSpec
    ) -> TakenPatch:
        await context.kill_processes()
        named = await hidden.with_files(item, pinned)
        try:
            return TakenPatch.of(await self._take_patch(named, context, pinned, own))
        except Rejected as rejected:
            return TakenPatch(rejected=(rejected.reason, rejected.detail))

    async def _measured(
        self, item: Row, context: SlotContext, pinned: Pinned, own: SlotSpec, patch: TakenPatch
    ) -> Verdict:
        if patch.rejected is not None:
            reason, detail = patch.rejected
            return Verdict(0.0, report={"reason": reason, "detail": detail})
        report = _patch_report(patch) | {"flags": await _flags(pinned, patch)}
        tree = await pinned.repository.apply(pinned.graded, patch.data) if patch.data else None
        if patch.data and tree is None:
            return Verdict(0.0, report={"reason": "does_not_apply", **report})
        if context.slot.spec != own:
            await context.renew(own)
        item = await hidden.measured_row(item, pinned, context)
        grader = Grader(context, item, pinned, wary=bool(report["flags"]))
        report |= await grader.grade(tree or pinned.graded)
        return Verdict(1.0 if report["reason"] == "resolved" else 0.0, report=report)

    async def _take_patch(
        self, item: Row, context: SlotContext, pinned: Pinned, own: SlotSpec
    ) -> AgentPatch:
        """Extract the patch; if that fails, do the same on untouched files to find the cause."""
        try:
            return await take_patch(context, item, pinned)
        except ExtractionFailed as failure:
            await context.renew(own)
            await fill(context, pinned, pinned.start)
            try:
                await take_patch(context, item, pinned)
            except ExtractionFailed as error:
                raise SandboxError(f"the slot cannot list its files: {error}") from error
            raise Rejected("unreadable", str(failure)) from failure

    def outcome(self, record: ScoredTrajectory) -> Mapping[str, Any]:
        """The patch that was tested. What did not count then is not in it."""
        return {"patch": recorded_patch(record.report)}

    async def put_back(self, item: Row, context: SlotContext, outcome: Mapping[str, Any]) -> str:
        """Apply the patch in the workspace; `verify` then takes it as it takes an agent's."""
        patch = outcome.get("patch")
        if not isinstance(patch, str):
            raise EnvBug("the outcome of a regrade has no text `patch`")
        if patch:
            await apply_recorded(context, await _pin(item, context), patch.encode())
        return "The recorded patch is applied."

    async def oracle(self, item: Row, context: SlotContext) -> list[ToolCall]:
        """The gold patch, applied through the terminal."""
        gold = await (await _pin(item, context)).gold()
        return terminal_calls(*apply_commands(gold))

    def oracle_answer(self, item: Row) -> str:
        """The oracle's final message."""
        return "The bug is repaired."

    def tamper(self, item: Row) -> Mapping[str, Sequence[ToolCall]]:
        """Attempts to score without the fix."""
        return tamper.cases(item)


async def _refuse_known_fault(item: Row, image: str | None) -> None:
    if fault := (await RowMemory(item, image).read()).fault:
        raise EnvBug(fault)


async def _pin(item: Row, context: SlotContext) -> Pinned:
    """What the row pins; the slot of an image must be fresh unless its host has read it."""
    if isinstance(item.source, ImageSource):
        return await pin_image(item, item.source, context)
    return await pin(item, asset_reader(context))


async def _pin_beside_the_agent(item: Row, context: SlotContext) -> Pinned:
    """The same after the agent, whose slot may have been set up by another host."""
    if not isinstance(item.source, ImageSource):
        return await pin(item, asset_reader(context))
    known = await known_pin(item, item.source, context.slot.image or "")
    if known is not None:
        return known
    kept = await context.commit()
    await context.renew()
    pinned = await pin_image(item, item.source, context)
    await context.renew(replace(context.slot.spec, image=kept))
    return pinned


def _task(item: Row, ending: str) -> str:
    if isinstance(item.source, ImageSource):
        return IMAGE_TASK.format(
            workspace=item.source.workdir,
            statement=item.problem_statement.strip(),
            command=_image_test_line(item, item.source),
            uncounted=_point(uncounted("packages")),
            ending=ending,
        )
    return TASK.format(
        workspace=WORKSPACE,
        statement=item.problem_statement.strip(),
        command=_pytest_line(item),
        uncounted=_point(uncounted("the package")),
        venv=suite.VENV,
        ending=ending,
    )


def _point(text: str) -> str:
    return textwrap.fill(text, 98, initial_indent="- ", subsequent_indent="  ")


def _pytest_line(item: Row) -> str:
    """The command with which the agent runs the tests."""
    runtime = item.environment
    roots = shlex.quote(":".join(runtime.pythonpath))
    own = {name: text for name, text in runtime.env.items() if name != "PYTHONPATH"}
    words = [f"PYTHONPATH={roots}:{SHELL_PATH}"]
    words += [f"{name}={shlex.quote(text)}" for name, text in own.items()]
    words += [f"{suite.VENV}/bin/python", "-m", "pytest", *map(shlex.quote, runtime.pytest_args)]
    return " ".join(words)


def _image_test_line(item: Row, source: ImageSource) -> str:
    runtime = item.environment
    words = [f"{name}={shlex.quote(text)}" for name, text in runtime.env.items()]
    words += [shlex.quote(source.python or "python"), *COMMANDS[source.runner]]
    return " ".join([*words, *map(shlex.quote, runtime.pytest_args)])


async def _flags(pinned: Pinned, patch: TakenPatch) -> list[str]:
    before = await pinned.repository.files(pinned.start)
    old = [path for path in patch.paths[:FLAGGED_PATHS] if path in before]
    texts = [await pinned.repository.read(pinned.start, path) for path in old]
    known = b"\n".join(texts).decode(errors="replace")
    return await asyncio.to_thread(find_flags, patch.data, known, await pinned.gold())


def _patch_report(patch: TakenPatch) -> dict[str, Any]:
    dropped = map(os.fsencode, patch.dropped)
    return {
        "patch": patch.data[:REPORTED_PATCH_BYTES].decode(errors="replace"),
        "patch_bytes": len(patch.data),
        "dropped": [path.decode(errors="replace") for path in dropped],
        "dropped_count": patch.dropped_count,
    }


ENV = SweSmith()
