"""Prices of model calls, from a table that the user keeps.

    ["gpt-5-mini"]          # TOML; the model name as in jobs
    prompt = 0.25           # US dollars per million tokens
    cached = 0.025          # prompt tokens in the provider's cache; default: as prompt
    completion = 2.0

The cost of a model that is not in the table is unknown: None, never 0.
"""

from __future__ import annotations

from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from hermes_queue.errors import ConfigurationError
from hermes_queue.models import Usage

_Price = Annotated[Decimal, Field(ge=0, le=10**9)]


class Prices(BaseModel):
    """Prices of one model in US dollars per million tokens."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    prompt: _Price
    cached: _Price | None = None
    completion: _Price

    def cost_usd(self, usage: Usage) -> float:
        """Cost of `usage` in US dollars. Cached tokens are part of the prompt tokens."""
        cached = min(usage.cached_tokens, usage.prompt_tokens)
        cached_price = self.prompt if self.cached is None else self.cached
        total = (
            (usage.prompt_tokens - cached) * self.prompt
            + cached * cached_price
            + usage.completion_tokens * self.completion
        )
        return float(total / 10**6)


_TABLE = TypeAdapter(dict[str, Prices])


@cache
def read_prices(path: Path | None) -> dict[str, Prices]:
    """The table at `path`, read once per process; {} for None. Raises ConfigurationError."""
    if path is None:
        return {}
    import tomllib

    try:
        with path.open("rb") as file:
            return _TABLE.validate_python(tomllib.load(file, parse_float=Decimal))
    except OSError as error:
        problem = error.strerror or error
        raise ConfigurationError(f"HERMES_QUEUE_MODEL_PRICES {path}: {problem}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"HERMES_QUEUE_MODEL_PRICES {path}: {error}") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = f"HERMES_QUEUE_MODEL_PRICES {path}: {'.'.join(map(str, first['loc']))}"
        raise ConfigurationError(f"{where}: {first['msg']}") from error


def cost_usd(model: str | None, usage: Usage, prices: Path | None) -> float | None:
    """Cost of `usage` in US dollars; None if the price is unknown, 0 for no tokens."""
    if not usage.prompt_tokens and not usage.completion_tokens:
        return 0.0
    known = read_prices(prices).get(model or "")
    return None if known is None else known.cost_usd(usage)
