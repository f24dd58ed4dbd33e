"""The box in which tests run, made from the slot that an agent has left."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hermes_plugins.harbor import box, boxes
from hermes_plugins.harbor.grading import services
from hermes_plugins.harbor.grading.disk import check_disk
from hermes_plugins.harbor.grading.links import delete, each_path, links_among, listed, resolved
from hermes_plugins.harbor.grading.needs import project_files
from hermes_plugins.harbor.grading.places import Decisive, TransplantPlan, parents, plan
from hermes_plugins.harbor.grading.provided import Provided, provide, provide_untouched
from hermes_plugins.harbor.grading.suspects import changed_programs, compiled
from hermes_plugins.harbor.grading.undone import settings_among, undo, undo_packages
from hermes_plugins.harbor.grading.users import LISTS, read_lists, restore
from hermes_plugins.harbor.settings import HarborSettings
from hermes_plugins.harbor.task import GradingMode, TaskFolder
from hermes_queue.errors import SandboxError, SlotLost
from hermes_queue.sandbox.archives import (
    ROOT,
    ArchiveError,
    Checked,
    FilesRefused,
    TooManyMembers,
    checked,
    joined,
    read_archive,
    write_archive,
)
from hermes_queue.sandbox.context import SlotContext
from hermes_queue.sandbox.image_slots import FileChange, TooManyChanges

REPORTED_PATHS = 100
_LINKER_CACHE = "/etc/ld.so.cache"
_DELETE = "xargs -0 -r rm -rf --"
_IN_THE_WAY = each_path(
    """
  folder=${path%/}
  if [ "$folder" = "$path" ]; then
    [ -L "$path" ] || [ ! -d "$path" ] || printf "%s\\0" "$path"
  elif [ -L "$folder" ] || { [ -e "$folder" ] && [ ! -d "$folder" ]; }; then
    printf "%s\\0" "$folder"
  fi"""
)
_MAKE_WAY = f"{_IN_THE_WAY} | xargs -0 -r rm -rf --; true"
"""Removes folders in place of which the agent has something else, and the reverse."""


class NotTaken(Exception):
    """What the agent left cannot be graded, by its own doing: score 0.

    Args:
        reason: for the verdict's report.
        detail: for people.
        suspect: paths of changed programs.
    """

    def __init__(self, reason: str, detail: str, suspect: Sequence[str] = ()) -> None:
        super().__init__(detail)
        self.report = {"reason": reason, "detail": detail, **reported("suspect", suspect)}


@dataclass(slots=True)
class GradingBox:
    """A slot ready for the tests."""

    mode: GradingMode
    agents: list[str] = field(default_factory=list)
    """Paths that come from the agent."""
    changes: Sequence[FileChange] = ()
    """With `restart`: all changes."""
    decisive: Decisive | None = None
    """With `restart`: what decides in it."""
    report: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    variables: dict[str, str] = field(default_factory=dict)
    """For the tests, beside the task's own."""
    provided: Provided = field(default_factory=Provided)
    unfit: str = ""
    """Why the box has no room for what the tests need."""
    users: Mapping[str, str] = field(default_factory=dict)
    """With `restart`: the agent's lists of users, where it changed them."""


async def make_box(context: SlotContext, task: TaskFolder, mode: GradingMode) -> GradingBox:
    """Kill all that runs in the agent's slot, and make the box of a mode out of it.

    Raises:
        NotTaken: the agent's files are too large, or cannot be read though an untouched box's can.
        SandboxRejected: the backend cannot grade in this mode.
        SandboxError: the sandbox failed.
    """
    agents = context.slot
    makers = {"separate": _separate, "transplant": _transplant, "restart": _restart}
    if mode == "restart":
        context.need_outside_changes()
    try:
        await services.check_not_killed(context)
        await box.kill_all(context)
        notes = await _collect(context, task)
        made = await makers[mode](context, task)
        made.notes = notes
        return made
    except (TooManyChanges, TooManyMembers) as error:
        raise NotTaken("too_large", str(error)) from error
    except OSError as error:
        raise NotTaken("too_large", f"the agent's files have {error.strerror} together") from error
    except ArchiveError as error:
        await _blame(context)
        raise NotTaken("unreadable", str(error)) from error
    except SandboxError as error:
        refused = isinstance(error, FilesRefused)
        if isinstance(error, SlotLost) or (
            not refused and (context.slot is not agents or await box.answers(context))
        ):
            raise
        if refused and mode != "restart" and context.slot is not agents:  # whose `df` might lie
            await check_disk(context)
        await _blame(context)
        if refused and mode == "transplant":  # perhaps this was what did not answer
            await context.changes()
        raise NotTaken("unreadable", str(error)) from error


async def untouched(context: SlotContext, task: TaskFolder, mode: GradingMode) -> GradingBox:
    """The box of a mode for an agent that did nothing.

    Raises:
        EnvInfraError: it does not become healthy.
        SandboxError: the sandbox failed.
    """
    if mode == "separate":
        await context.renew(boxes.agent_spec(task, context.slot.spec.profile))
        await box.make_ready(context, task)
        await box.try_stages(context, task)
        await box.kill_all(context)
        try:
            return await _separate(context, task)
        except (OSError, ArchiveError) as error:
            raise SandboxError(f"an untouched box gives no artifacts: {error}") from error
    await context.renew(boxes.grading_spec(task, context.slot.spec.profile))
    await box.make_ready(context, task)
    await box.try_stages(context, task)
    return GradingBox(mode, provided=await provide_untouched(context, task))


async def _collect(context: SlotContext, task: TaskFolder) -> list[str]:
    """Run the task's collect hooks, among its services; what went wrong, for the report.

    Raises:
        NotTaken: programs of a service were changed.
        SandboxError: the sandbox failed.
    """
    hooks = task.verifier.collect
    if not hooks:
        return []
    notes = []
    if changed := await services.changed_services(context, services.asked(task)):
        raise NotTaken("suspect", "programs of services were changed", changed)
    await box.start_entrypoint(context, task)
    if check := task.environment.healthcheck:
        await box.wait_until_healthy(context, check)
    for number, hook in enumerate(hooks):
        if problem := await services.run_hook(context, hook):
            notes.append(f"collect hook {number} {problem}")
    await box.kill_all(context)
    return notes


async def _separate(context: SlotContext, task: TaskFolder) -> GradingBox:
    left, found, missing = _budget(), list[Checked](), []
    for artifact in task.artifacts:
        place = await services.place_of(context, artifact.service)
        source = "/" + artifact.source.strip("/")
        if place is None:
            missing.append(f"{artifact.service}:{source}")
            continue
        if not artifact.source.startswith("/"):
            source = f"{place.workspace.rstrip('/')}/{artifact.source.strip('/')}"
        exclude = artifact.exclude
        data = await read_archive(place, [source], max_bytes=left, exclude=exclude)
        left -= len(data)
        archive = await asyncio.to_thread(checked, data, _below(source))
        if archive.names:
            found.append(archive)
        else:
            missing.append(source)
    await context.renew(boxes.grading_spec(task, context.slot.spec.profile))
    provided = await provide_untouched(context, task)
    decisive = await _decisive(context, task)
    decisive = _importing(decisive, provided)
    names = [name for each in found for name in each.names]
    steering = {name for name in names if decisive.may_not_be_given(name)}
    steering |= await settings_among(context, task, names, decisive)
    if found:
        data = await asyncio.to_thread(joined, [archive.data for archive in found])
        if steering:
            whole = await asyncio.to_thread(checked, data, lambda path: path not in steering)
            data = whole.data
        users = await read_lists(context)
        await write_archive(context, "/", data, own=False)
        steering.update(await restore(context, users))
    in_the_way = await _in_the_way(context, set(names) - steering, decisive, provided)
    await delete(context, in_the_way)
    table = task.verifier.environment
    await box.start_services(context, None, table.healthcheck if table else None)
    made = GradingBox("separate", names, provided=provided)
    made.report |= reported("missing_artifacts", missing)
    left_out = [path for each in found for path in each.dropped]
    made.report |= reported("left_out", [*left_out, *sorted(steering), *in_the_way])
    return made


async def _transplant(context: SlotContext, task: TaskFolder) -> GradingBox:
    changes = await context.changes()
    decisive = await _decisive(context, task, changes)
    planned: TransplantPlan = await asyncio.to_thread(plan, changes, decisive)
    archive = Checked(b"")
    if planned.taken:
        data = await read_archive(context, planned.taken, max_bytes=_budget(), recursive=False)
        archive = await asyncio.to_thread(checked, data, set(planned.taken).__contains__)
    await context.renew(boxes.grading_spec(task, context.slot.spec.profile))
    provided = await provide_untouched(context, task)
    steering = await asyncio.to_thread(_shadowing, changes, decisive, provided)
    moved = [*archive.names, *planned.deleted]
    steering = steering.intersection(moved) | await settings_among(context, task, moved, decisive)
    if steering:
        planned.left_out.extend(sorted(steering))
        planned.deleted[:] = (path for path in planned.deleted if path not in steering)
        archive = await asyncio.to_thread(checked, archive.data, lambda path: path not in steering)
    # A link in place of a folder with programs would bring the agent's own.
    links = await asyncio.to_thread(_leading_away, archive, decisive)
    if links:
        archive = await asyncio.to_thread(checked, archive.data, lambda path: path not in links)
    await _make_way(context, archive, decisive)
    led_away = await _led_away(context, archive.names + planned.deleted)
    if led_away:
        kept = _outside(led_away)
        archive = await asyncio.to_thread(checked, archive.data, kept)
        planned.deleted[:] = filter(kept, planned.deleted)
    await listed(context, f"{_DELETE}; true", planned.deleted)
    if archive.names:
        users = await read_lists(context)
        await write_archive(context, "/", archive.data, own=False)
        planned.left_out.extend(await restore(context, users))
    added = {each.path for each in changes if each.kind == "added"}.intersection(archive.names)
    in_the_way = await _in_the_way(context, added, decisive, provided)
    await delete(context, in_the_way)
    await box.start_services(context, task, task.environment.healthcheck)
    made = GradingBox("transplant", archive.names, provided=provided)
    left_out = [*planned.left_out, *archive.dropped, *sorted(links), *led_away, *in_the_way]
    made.report |= reported("left_out", left_out)
    return made


async def _decisive(
    context: SlotContext, task: TaskFolder, changes: Sequence[FileChange] = ()
) -> Decisive:
    """What decides in the slot's box when the task's tests run in it, after an agent's changes."""
    config = context.slot.image_config
    text = await asyncio.to_thread(task.tests_text)
    project = frozenset[str]() if task.verifier.agent_project else project_files(text)
    added = {each.path for each in changes if each.kind == "added"}
    return Decisive.of(config, context.workspace, project).for_tests(text, config, added)


def _importing(decisive: Decisive, provided: Provided) -> Decisive:
    """What decides, with the modules that graders and tests were seen to import."""
    seen = provided.imported
    return decisive.importing(seen.by_graders | seen.by_tests, seen.missing)


async def _in_the_way(
    context: SlotContext, added: Collection[str], decisive: Decisive, provided: Provided
) -> list[str]:
    """Which of these files of an agent's would be imported where the tests go to, by any link."""
    if not decisive.entered:
        return []
    folders = filter(None, await resolved(context, decisive.entered))
    found = _importing(decisive, provided).starting_in(folders)
    return sorted(path for path in added if found.is_imported(path))


def _shadowing(changes: Sequence[FileChange], decisive: Decisive, provided: Provided) -> set[str]:
    """Modules that Python would import in place of those of the graders. Blocking.

    What the tests import may be the project that is worked on, and be installed, too: of that,
    only files that the image does not have.
    """
    graders = decisive.importing(provided.imported.by_graders, provided.imported.missing)
    tests = decisive.importing(provided.imported.by_tests)
    return {
        each.path
        for each in changes
        if graders.is_imported(each.path) or (each.kind == "added" and tests.is_imported(each.path))
    }


async def _make_way(context: SlotContext, archive: Checked, decisive: Decisive) -> None:
    """In a fresh box, remove what has another kind than the agent's file at the same path.

    Raises:
        FilesRefused: not in time.
        SandboxError: the sandbox failed.
    """
    leading = await asyncio.to_thread(_leading_away, archive, decisive, folders=True)
    names = [path for path in archive.names if path not in leading]
    paths = [f"{path}/" if path in archive.folders else path for path in names]
    await listed(context, _MAKE_WAY, paths)


def _leading_away(archive: Checked, decisive: Decisive, *, folders: bool = False) -> set[str]:
    """See `Decisive.leads_away`; of folders only if wanted. Blocking."""
    names = (path for path in archive.names if folders or path not in archive.folders)
    return {path for path in names if decisive.leads_away(path)}


async def _restart(context: SlotContext, task: TaskFolder) -> GradingBox:
    await context.restart()
    changes = await context.changes()
    decisive = await _decisive(context, task, changes)
    if changed := changed_programs(changes, decisive):  # nothing that runs here can be believed
        raise NotTaken("suspect", "programs of the image were changed", changed)
    if changed := await services.changed_services(context, services.names(task)):
        raise NotTaken("suspect", "programs of services were changed", changed)
    made = GradingBox("restart", changes=changes, decisive=decisive)
    kept = (each.path for each in changes if each.kind != "deleted")
    made.agents = [path for path in kept if not decisive.is_program(path)]
    undone = await undo(context, task, changes, decisive)
    await _without_caches(context, changes)
    if not {each.path for each in changes}.isdisjoint(LISTS):
        made.users = await read_lists(context)
    try:
        agents = {each.path for each in changes if each.kind != "deleted"}
        made.provided = await provide(context, task, agents)
        await box.kill_all(context)  # what modules of the agent's may have started
        undone += await undo_packages(context, changes, made.provided.packages)
    except FilesRefused as error:  # an untouched box says whose doing it is
        made.unfit = str(error)
    made.report |= reported("undone", undone)
    shadows = await asyncio.to_thread(_shadowing, changes, decisive, made.provided)
    added = [each.path for each in changes if each.kind == "added"]
    shadows.update(await _in_the_way(context, added, decisive, made.provided))
    if shadows:
        raise NotTaken("suspect", "modules that graders import were replaced", sorted(shadows))
    made.variables["PYTHONPYCACHEPREFIX"] = "/logs/verifier/.pycache"
    await box.start_services(context, task, task.environment.healthcheck)
    return made


async def _without_caches(context: SlotContext, changes: Sequence[FileChange]) -> None:
    """Make the linker's cache anew, and delete compiled modules: only their sources are looked at.

    Raises:
        NotTaken: the linker's cache cannot be made anew.
        SandboxError: the sandbox failed.
    """
    if any(change.path == _LINKER_CACHE and change.kind != "deleted" for change in changes):
        # Before any program runs, as each finds its libraries by it.
        try:
            await context.write_file(_LINKER_CACHE, b"")
        except OSError as error:
            raise NotTaken("suspect", str(error), [_LINKER_CACHE]) from error
        await context.run("ldconfig", cwd="/", user=ROOT, timeout_s=60.0)
    await listed(context, _DELETE, compiled(changes))


async def _led_away(context: SlotContext, paths: Sequence[str]) -> list[str]:
    """Folders above these paths that are links of the image to another place."""
    return await links_among(context, await asyncio.to_thread(parents, paths))


async def _blame(context: SlotContext) -> None:
    """Return if an untouched box answers where the agent's did not; raises SandboxError else."""
    await context.renew()
    try:
        data = await read_archive(context, ["/etc"], max_bytes=_budget())
        await asyncio.to_thread(checked, data)
    except (OSError, ArchiveError) as error:
        raise SandboxError(f"an untouched box cannot give its files either: {error}") from error


def _budget() -> int:
    return HarborSettings().archive_mb << 20


def _below(source: str) -> Any:
    return lambda path: path == source or path.startswith(source + "/")


def _outside(folders: Sequence[str]) -> Any:
    prefixes = tuple(folder + "/" for folder in folders)
    return lambda path: not path.startswith(prefixes)


def reported(name: str, paths: Sequence[str]) -> dict[str, Any]:
    """Paths for the report, cut, with their number; nothing if there are none."""
    if not paths:
        return {}
    shown = [path.encode(errors="replace").decode()[:500] for path in paths[:REPORTED_PATHS]]
    return {name: shown, f"{name}_count": len(paths)}
