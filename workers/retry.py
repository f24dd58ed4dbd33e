"""Whether a failed attempt is repeated, and when.

Only failures of infrastructure are; an agent's failure is a measurement. Each cause has a limit,
see `errors.CAUSES`, because what helps differs: a rate-limited model recovers with patience, a
package that does not install seldom does.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from hermes_queue.errors import TrajectoryFailure
from hermes_queue.models import AttemptRecord
from hermes_queue.settings import RetrySettings


def retry_delay_s(
    failure: TrajectoryFailure,
    earlier: Sequence[AttemptRecord],
    settings: RetrySettings,
    *,
    left_s: float,
) -> float | None:
    """Seconds to wait before the next attempt; None when there is none.

    `earlier` attempts failed before this one. `left_s` is what they have left of the total
    deadline; waiting uses none of it.
    """
    setting = failure.consequences.attempts
    attempts = len(earlier) + 1
    alike = 1 + sum(record.failure.cause == failure.cause for record in earlier)
    if setting is None or left_s <= 0 or attempts >= settings.max_attempts:
        return None
    if alike >= getattr(settings, setting):
        return None
    delay_s: float = min(settings.backoff_s * 2 ** (attempts - 1), settings.backoff_max_s)
    return delay_s * random.uniform(0.5, 1.0)  # noqa: S311 - jitter, not a secret
