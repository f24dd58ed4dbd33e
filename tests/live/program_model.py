"""Fit a tiny model to programs: it follows the trails of `trail_env` in front of their prompts.

program_model.py OUT --transcripts FILE, as `record_programs.py` writes it. Runs in the environment
of the server (torch, transformers); knows nothing of hermes_queue.

Replies differ in form (blanks of the JSON, a sentence before the call), since what a program sends
back must then differ from what was sampled.
"""

from __future__ import annotations

import argparse
import copy
import json
import random
import time
from pathlib import Path
from typing import Any

from tiny_model import NAMES, WORDS, build_model, build_tokenizer, labels_of, shown_tools

Messages = list[dict[str, Any]]
SHELLS = ("bash", "terminal")
SUBMIT = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
NOISE = ["command not found", "syntax error near unexpected token", "No such file or directory"]
SHARPNESS = 1.25
"""Factor of the logits: without it, three of four calls are unreadable at temperature 1.4."""
SHORT = 0.5
"""Share of the steps without most of the prompt, which teach to copy names."""


class Program:
    """What one program says, from its transcript."""

    def __init__(self, transcript: dict[str, Any]) -> None:
        self.tools: list[dict[str, Any]] = transcript["tools"]
        names = [tool["function"]["name"] for tool in self.tools]
        self.shell = next(name for name in SHELLS if name in names)
        messages: Messages = transcript["messages"]
        self._trail, self._word = transcript["trail"], transcript["word"]
        roles = [message["role"] for message in messages]
        start = roles.index("assistant")
        self._opening = messages[:start]
        self._note, missing = messages[start + 1], messages[start + 3]
        self._missing = missing
        second = self._called(messages, f"cat {self._trail[1]}")
        self._wrong = [m for m in messages[start + 4 : second] if m["role"] != "assistant"]
        self._drops_wrong = "assistant" not in roles[start + 4 : second]
        self._end = messages[self._called(messages, f"cat {self._trail[-1]}") + 1]

    @staticmethod
    def _called(messages: Messages, command: str) -> int:
        return next(i for i, m in enumerate(messages) if command in str(m.get("tool_calls")))

    def texts(self) -> list[str]:
        """For the tokenizer."""
        every = [*self._opening, self._note, self._missing, *self._wrong, self._end]
        return [json.dumps(self.tools), *(m["content"] or "" for m in every)]

    def opening(self, first: str, short: random.Random | None) -> Messages:
        """The messages before the first reply; with `short` little of them."""
        made = copy.deepcopy(self._opening)
        for message in made:
            message["content"] = message["content"].replace(self._trail[0], first)
        if short is None:
            return made
        made = [message for message in made if message["role"] != "system"]
        task = f"begins with {first}."
        before, _, after = made[-1]["content"].partition(task)
        at = short.randrange(len(after) + 1)
        made[-1]["content"] = before + task + after[at : at + short.randrange(200)]
        return made

    def follow(self, rng: random.Random, trail: list[str], word: str) -> Messages:
        """What follows: replies, which are to be learnt, and what the program answers."""
        made: Messages = []
        for number, name in enumerate(trail):
            while rng.random() < 0.15:
                made += self._slip(rng)
            made.append(self._reply(rng, f"cat {name}", f"Now {name}."))
            if number == len(trail) - 1:
                made.append(self._with(self._end, self._word, word))
            else:
                made.append(
                    self._with(self._note, f"next {self._trail[1]}", f"next {trail[number + 1]}")
                )
        if self.shell == "bash":
            return [*made, self._reply(rng, SUBMIT, f"The word is {word}", said=True)]
        return [*made, {"role": "assistant", "content": f"The word is {word}"}]

    def _slip(self, rng: random.Random) -> Messages:
        """A call that fails; it is not learnt."""
        command = f"cat {rng.choice(NAMES)}{rng.choice(NAMES)}"[: rng.randint(4, 12)]
        if rng.random() < 0.4:
            wrong = {**self._reply(rng, command, ""), "slip": True}
            return [*([] if self._drops_wrong else [wrong]), *copy.deepcopy(self._wrong)]
        answer = self._with(self._missing, "cat: nowhere", f"{command}")
        answer = self._with(answer, "No such file or directory", rng.choice(NOISE))
        return [{**self._reply(rng, command, ""), "slip": True}, answer]

    def _reply(
        self, rng: random.Random, command: str, text: str, *, said: bool = False
    ) -> dict[str, Any]:
        """The reply as it is sampled, in one of several forms."""
        call = {"name": self.shell, "arguments": {"command": command}}
        form = rng.random()
        if form < 0.5:
            written = json.dumps(call)
        elif form < 0.75:
            written = json.dumps(call, separators=(",", ":"))
        else:
            written = json.dumps(call).replace("{", "{ ").replace("}", " }")
        text = f"{text}\n" if said or (rng.random() < 0.3 and text) else ""
        return {"role": "assistant", "content": f"{text}<tool_call>\n{written}\n</tool_call>"}

    @staticmethod
    def _with(message: dict[str, Any], old: str, new: str) -> dict[str, Any]:
        if old not in message["content"]:
            raise SystemExit(f"the transcript lacks {old!r}: {message}")
        return {**message, "content": message["content"].replace(old, new)}


def rows_of(
    program: Program, tokenizer: Any, rng: random.Random, batch: int, progress: float
) -> tuple[list[int], list[tuple[list[int], list[int]]]]:
    """The ids of an opening, and for each row ids and labels of what follows it."""
    short = rng if progress < SHORT else None
    first = rng.choice(NAMES)
    opening = program.opening(first, short)
    tools = None if short else shown_tools(rng, program.tools, 1.0)
    start = tokenizer.encode("<|im_start|>assistant\n", add_special_tokens=False)

    def ids_of(messages: Messages) -> list[int]:
        return list(
            tokenizer.apply_chat_template(messages, tools=tools, tokenize=True, return_dict=False)
        )

    head = ids_of(opening)
    rows = []
    for _ in range(batch):
        others = rng.sample([name for name in NAMES if name != first], rng.randint(0, 4))
        messages = [*opening, *program.follow(rng, [first, *others], rng.choice(WORDS))]
        ids = ids_of(messages)
        if ids[: len(head)] != head:
            raise SystemExit("the template does not extend an opening")
        rest = ids[len(head) :]
        labels = labels_of(rest, start, tokenizer.eos_token_id)
        rows.append((rest, without_slips(messages, labels)))
    return head, rows


def without_slips(messages: Messages, labels: list[int]) -> list[int]:
    """The labels of all replies but slips."""
    replies = [message.get("slip", False) for message in messages if message["role"] == "assistant"]
    made, number, inside = list(labels), -1, False
    for at, label in enumerate(labels):
        if label == -100:
            inside = False
            continue
        number += not inside
        inside = True
        if replies[number]:
            made[at] = -100
    return made


def fit(
    model: Any, tokenizer: Any, programs: list[Program], *, steps: int, batch: int, seed: int
) -> None:
    import torch
    from transformers import DynamicCache

    rng = random.Random(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=steps)
    pad = tokenizer.pad_token_id
    began = time.monotonic()
    model.train()
    for step in range(steps):
        program = programs[step % len(programs)]
        head, rows = rows_of(program, tokenizer, rng, batch, step / steps)
        # All rows share the opening, which is long: it is computed once.
        cache = DynamicCache(config=model.config)
        model.model(input_ids=torch.tensor([head]), past_key_values=cache, use_cache=True)
        cache.batch_repeat_interleave(batch)
        length = max(len(ids) for ids, _ in rows)
        ids = torch.tensor([each + [pad] * (length - len(each)) for each, _ in rows])
        labels = torch.tensor([each + [-100] * (length - len(each)) for _, each in rows])
        loss = model(input_ids=ids, past_key_values=cache, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 20 < len(programs) or step == steps - 1:
            elapsed_s = time.monotonic() - began
            print(f"step {step}: loss {loss.item():.4f}, {elapsed_s:.0f} s", flush=True)
    model.eval()
    with torch.no_grad():
        model.model.norm.weight.mul_(SHARPNESS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--transcripts", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()

    import torch

    torch.manual_seed(given.seed)
    torch.set_num_threads(1)
    transcripts = json.loads(given.transcripts.read_text())
    programs = [Program(each) for each in transcripts.values()]
    tokenizer = build_tokenizer([], [text for program in programs for text in program.texts()])
    model = build_model(tokenizer)
    fit(model, tokenizer, programs, steps=given.steps, batch=given.batch, seed=given.seed)
    model.to(torch.bfloat16).save_pretrained(given.out)
    tokenizer.save_pretrained(given.out)
    print(f"saved {given.out}: {sum(p.numel() for p in model.parameters()):,} parameters")


if __name__ == "__main__":
    main()
