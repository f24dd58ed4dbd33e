"""The store of this host, for one command."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

import click

from hermes_queue.errors import EXIT_USAGE, EnvBug, TrajectoryFailure
from hermes_queue.terminal.output import echo

if TYPE_CHECKING:
    from hermes_plugins.images.store import ImageStore

T = TypeVar("T")


class WrongInput(click.ClickException):
    """A name, file or Dockerfile that the command was given is wrong."""

    exit_code = EXIT_USAGE


def with_store(use: Callable[[ImageStore], Awaitable[T]]) -> T:
    """Call `use` with this host's store. Raises ClickException: what tasks fail with."""
    from hermes_plugins.images.rootfs.steps import RootfsSteps
    from hermes_plugins.images.settings import ImageSettings
    from hermes_plugins.images.store import ImageStore
    from hermes_queue.settings import PathSettings

    async def work() -> T:
        cache = PathSettings().cache
        steps = RootfsSteps.of(cache)
        try:
            store = ImageStore(
                cache / "images",
                ImageSettings(),
                steps,
                report=lambda line: echo(line, err=True),
            )
            return await use(store)
        finally:
            await steps.close()

    try:
        return asyncio.run(work())
    except EnvBug as error:
        raise WrongInput(str(error)) from error
    except TrajectoryFailure as error:
        raise click.ClickException(str(error)) from error
