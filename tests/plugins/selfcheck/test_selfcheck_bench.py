"""How the checks of a backend run commands."""

from __future__ import annotations

import re

from hermes_plugins.selfcheck.bench import SlotBench


async def test_only_the_word_4242_becomes_the_sleeping_time(make_bench):
    bench = SlotBench((await make_bench("local-unfenced", slots=1)).backend)
    slot = await bench.slot()
    printed = await bench.out(slot, "echo venv-42421 a4242 '[s]leep 4242' 4242")
    assert re.fullmatch(r"venv-42421 a4242 \[s\]leep (\d{7,8}) \1", printed), printed
