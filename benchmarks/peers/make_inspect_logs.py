"""Inspect AI: logs for its viewer. Usage: make_inspect_logs.py DIRECTORY MANY FEW TURNS TURN_BYTES.

`DIRECTORY/long` gets a sample that Inspect itself ran: a model calls a tool TURNS times, whose
output has TURN_BYTES each. `DIRECTORY/few` and `DIRECTORY/many` get logs of so many samples: copies
of a short one that it ran, without its events, with other ids and scores, and their summaries. It
runs in a virtual environment of its own and prints as JSON what it made.
"""

# mypy: ignore-errors

import json
import random
import shutil
import sys
import time
import zipfile
from pathlib import Path

import zipfile_zstd  # noqa: F401 - teaches zipfile what Inspect compresses with
from inspect_ai import Task, eval
from inspect_ai.dataset import MemoryDataset, Sample
from inspect_ai.model import GenerateConfig, ModelOutput, ModelUsage, get_model
from inspect_ai.scorer import Score, Target, mean, scorer
from inspect_ai.solver import TaskState, generate, use_tools
from inspect_ai.tool import tool

CHANCE = random.Random(18)
WORDS = ["".join(CHANCE.choices("abcdefghijklmnopqrstuvwxyz_", k=CHANCE.randint(2, 11)))
         for _ in range(6000)]  # fmt: skip
HEAVY = ("events", "attachments", "store")


def text(length: int) -> str:
    """About `length` characters in lines, which compress as code does."""
    words = CHANCE.choices(WORDS, k=length // 8)
    return " ".join(f"{word}\n" if at % 9 == 0 else word for at, word in enumerate(words))


@scorer(metrics=[mean()])
def by_chance():
    async def score(state: TaskState, target: Target) -> Score:
        return Score(value=float(CHANCE.random() < 0.4), explanation="tests_fail")

    return score


def ran(directory: Path, turns: int, turn_bytes: int, task_bytes: int) -> Path:
    """The log of one sample that calls a tool so many times."""

    @tool
    def terminal():
        async def execute(command: str) -> str:
            """Run a command.

            Args:
                command: the command
            """
            return text(turn_bytes)

        return execute

    calls = [
        ModelOutput.for_tool_call("mockllm/model", "terminal", {"command": text(160)})
        for _ in range(turns)
    ]
    answer = ModelOutput.from_content("mockllm/model", "submitted")
    for output in (*calls, answer):  # otherwise it downloads a tokenizer to count
        output.usage = ModelUsage(input_tokens=3000, output_tokens=90, total_tokens=3090)
    task = Task(
        dataset=MemoryDataset([Sample(input=text(task_bytes), target="x", id="sample-0")]),
        solver=[use_tools(terminal()), generate()],
        scorer=by_chance(),
        config=GenerateConfig(max_tool_output=2 * turn_bytes + 1),
    )
    model = get_model("mockllm/model", custom_outputs=[*calls, answer])
    [log] = eval(task, model=model, display="none", log_dir=str(directory))
    if log.status != "success":
        raise SystemExit(f"{log.status}: {str(log.error)[:500]}")
    [path] = directory.glob("*.eval")
    return path


def copied(path: Path, directory: Path, count: int) -> None:
    """A log of so many samples like the one in `path`."""
    directory.mkdir()
    with zipfile.ZipFile(path) as short:
        names = short.namelist()
        start = short.read("_journal/start.json")
        header = json.loads(short.read("header.json"))
        [summary] = json.loads(short.read("summaries.json"))
        [name] = [name for name in names if name.startswith("samples/")]
        sample = json.loads(short.read(name))
    for field in HEAVY:
        sample[field] = type(sample.get(field) or {})()
    header["eval"]["dataset"] |= {"samples": count, "sample_ids": None}
    header["results"] |= {"total_samples": count, "completed_samples": count}
    written = zipfile.ZipFile(directory / path.name, "w", zipfile.ZIP_DEFLATED, compresslevel=1)
    summaries = []
    with written as log:
        log.writestr("_journal/start.json", start)
        for number in range(count):
            [scored] = summary["scores"]
            score = {**summary["scores"][scored], "value": float(CHANCE.random() < 0.4)}
            own = {"id": f"owner__repo.{number:08x}", "uuid": f"{number:022d}"}
            own |= {"scores": {scored: score}}
            summaries.append({**summary, **own})
            body = json.dumps({**sample, **own})
            log.writestr(f"samples/{own['id']}_epoch_1.json", body)
        log.writestr("summaries.json", json.dumps(summaries))
        log.writestr("header.json", json.dumps(header))


def main() -> None:
    directory = Path(sys.argv[1])
    many, few, turns, turn_bytes = map(int, sys.argv[2:])
    ran(directory / "long", turns, turn_bytes, 4000)
    short = ran(directory / "short", 2, 100, 300)
    begun = time.perf_counter()
    for name, count in (("few", few), ("many", many)):
        copied(short, directory / name, count)
    shutil.rmtree(directory / "short")
    sizes = {f"{each.parent.name}_bytes": each.stat().st_size for each in directory.glob("*/*")}
    print(json.dumps({"copied_s": time.perf_counter() - begun, **sizes}))


if __name__ == "__main__":
    main()
