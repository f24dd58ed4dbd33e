"""Runs checks one after the other and reports the result of each."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from typing import Literal

from hermes_queue.sandbox.selfcheck.bench import Check, CheckFailed, NotApplicable, Subject


@dataclass(frozen=True, slots=True)
class CheckResult:
    """Result of one check."""

    check: Check
    verdict: Literal["passed", "failed", "skipped"]
    why: str
    """Empty if it passed."""
    duration_s: float


async def outcomes(
    checks: Iterable[Check], subject: Subject, *, timeout_s: float
) -> AsyncIterator[CheckResult]:
    """Yield the result of each check as soon as it is known. Raises no error of the backend.

    Args:
        checks: the checks to run.
        subject: the backend to check.
        timeout_s: for one check, the start of its backend included.
    """
    for check in checks:
        began = time.monotonic()
        verdict, why = await _verdict(check, subject, timeout_s)
        yield CheckResult(check, verdict, why, time.monotonic() - began)


async def _verdict(
    check: Check, subject: Subject, timeout_s: float
) -> tuple[Literal["passed", "failed", "skipped"], str]:
    try:
        async with asyncio.timeout(timeout_s):
            await check.run(subject)
    except NotApplicable as reason:
        return "skipped", str(reason)
    except CheckFailed as failure:
        return "failed", str(failure)
    except TimeoutError:
        return "failed", f"it took longer than {timeout_s:g} s"
    except Exception as error:  # noqa: BLE001 - foreign code may raise anything
        return "failed", f"{type(error).__name__}: {error}"
    return "passed", ""
