"""Make a tiny Qwen3-architecture model that calls tools, offline: tokenizer, template, weights.

It knows one task, that of `trail_env`: read the note that the last observation names, until a
note says that it is the last. The tokenizer is trained on text made here, and the weights are
fitted to dialogues made here; nothing is downloaded.

Runs in the environment of the server (torch, transformers); knows nothing of hermes_queue.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
# Control markers that must stay visible in decoded text: added, but not "special".
MARKERS = ["<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"]
MARKERS += ["<think>", "</think>"]
VOCABULARY = 2048
NAMES = ["apple", "birch", "cedar", "daisy", "elder", "ferns", "grape", "hazel"]
NAMES += ["irises", "jasmine", "kelp", "lilac", "maple", "nettle", "olives", "poppy"]
WORDS = ["red", "green", "blue", "white", "black", "brown", "amber", "violet"]

TEMPLATE = """\
{%- set sys = messages[0].content if messages and messages[0].role == 'system' else '' -%}
{%- if tools -%}
{{- '<|im_start|>system\\n' -}}
{%- if sys -%}{{- sys + '\\n\\n' -}}{%- endif -%}
{{- 'You can call these functions:\\n<tools>' -}}
{%- for t in tools -%}{{- '\\n' + (t | tojson) -}}{%- endfor -%}
{{- '\\n</tools>\\nTo call one, answer with ' -}}
{{- '<tool_call>{"name": ..., "arguments": ...}</tool_call>.' -}}
{{- '<|im_end|>\\n' -}}
{%- elif sys -%}
{{- '<|im_start|>system\\n' + sys + '<|im_end|>\\n' -}}
{%- endif -%}
{%- for m in messages -%}
{%- if m.role == 'user' or (m.role == 'system' and loop.index0 > 0) -%}
{{- '<|im_start|>' + m.role + '\\n' + (m.content or '') + '<|im_end|>\\n' -}}
{%- elif m.role == 'assistant' -%}
{{- '<|im_start|>assistant\\n' + (m.content or '') -}}
{%- for c in (m.tool_calls or []) -%}
{%- set f = c.function if c.function is defined else c -%}
{%- if m.content or not loop.first -%}{{- '\\n' -}}{%- endif -%}
{{- '<tool_call>\\n{"name": "' + f.name + '", "arguments": ' -}}
{{- f.arguments if f.arguments is string else (f.arguments | tojson) -}}
{{- '}\\n</tool_call>' -}}
{%- endfor -%}
{{- '<|im_end|>\\n' -}}
{%- elif m.role == 'tool' -%}
{%- if loop.first or messages[loop.index0 - 1].role != 'tool' -%}
{{- '<|im_start|>user' -}}
{%- endif -%}
{{- '\\n<tool_response>\\n' + (m.content or '') + '\\n</tool_response>' -}}
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' -%}{{- '<|im_end|>\\n' -}}{%- endif -%}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}
"""


def dialogue(rng: random.Random, longest: int = 5) -> list[dict[str, Any]]:
    """One trail followed to its end, as `trail_env` and the tool `terminal` put it."""
    trail = rng.sample(NAMES, rng.randint(1, longest))
    word = rng.choice(WORDS)
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": f"Follow the trail of notes that begins with {trail[0]}."}
    ]
    for number, name in enumerate(trail):
        arguments = json.dumps({"command": f"cat {name}"})
        call = {"type": "function", "function": {"name": "terminal", "arguments": arguments}}
        last = number == len(trail) - 1
        text = f"the end, and the word is {word}" if last else f"next {trail[number + 1]}"
        messages.append({"role": "assistant", "content": "", "tool_calls": [call]})
        messages.append({"role": "tool", "content": f"[exit code 0]\n{text}"})
    return [*messages, {"role": "assistant", "content": f"The word is {word}"}]


def shown_tools(
    rng: random.Random, tools: list[dict[str, Any]], progress: float
) -> list[dict[str, Any]]:
    """The tools as one server or another shows them: SGLang adds fields, vLLM does not.

    At first none: dialogues of a quarter of the length teach to copy names as well.
    """
    if progress < 0.7:
        return []
    if rng.random() < 0.5:
        return tools
    described = [dict(tool["function"]) for tool in tools]
    for function in described:
        function["strict"] = False
    return [{"type": "function", "function": function} for function in described]


def build_tokenizer(tools: list[dict[str, Any]], texts: Sequence[str] = ()) -> Any:
    """A tokenizer for dialogues with `tools`, and for `texts`."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    def corpus() -> Iterator[str]:
        rng = random.Random(0)
        for _ in range(1000):
            yield json.dumps(tools) + "".join(f"\n{m['content']}" for m in dialogue(rng))
        yield from (text for text in texts for _ in range(20))
        yield from (Path(module.__file__).read_text() for module in (json, random, argparse))

    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - len(MARKERS), special_tokens=SPECIALS, initial_alphabet=alphabet
    )
    bpe.train_from_iterator(corpus(), trainer)
    bpe.add_tokens([AddedToken(marker, normalized=False) for marker in MARKERS])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=["<|im_start|>", "<|im_end|>"],
        model_max_length=32768,
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def build_model(tokenizer: Any) -> Any:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    return Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=len(tokenizer),
            hidden_size=128,
            intermediate_size=384,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=32,
            max_position_embeddings=32768,
            tie_word_embeddings=True,
            eos_token_id=tokenizer.convert_tokens_to_ids("<|im_end|>"),
            pad_token_id=tokenizer.convert_tokens_to_ids("<|endoftext|>"),
            bos_token_id=None,
        )
    )


def labels_of(ids: list[int], start: list[int], end: int) -> list[int]:
    """The ids where the assistant speaks, with the token that ends its turn; else -100."""
    labels = [-100] * len(ids)
    position = 0
    while position < len(ids):
        if ids[position : position + len(start)] != start:
            position += 1
            continue
        position += len(start)
        until = ids.index(end, position) + 1
        labels[position:until] = ids[position:until]
        position = until
    return labels


def fit(
    model: Any, tokenizer: Any, tools: list[dict[str, Any]], *, steps: int, batch: int, seed: int
) -> None:
    import torch

    rng = random.Random(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=steps)
    start = tokenizer.encode("<|im_start|>assistant\n", add_special_tokens=False)
    end, pad = tokenizer.eos_token_id, tokenizer.pad_token_id
    began = time.monotonic()
    model.train()
    for step in range(steps):
        progress = step / steps
        longest = 2 if progress < 0.4 else 5
        rows = [
            tokenizer.apply_chat_template(
                dialogue(rng, longest),
                tools=shown_tools(rng, tools, progress) or None,
                tokenize=True,
                return_dict=False,
            )
            for _ in range(batch)
        ]
        length = max(map(len, rows))
        ids = torch.tensor([row + [pad] * (length - len(row)) for row in rows])
        labels = torch.tensor(
            [labels_of(row, start, end) + [-100] * (length - len(row)) for row in rows]
        )
        mask = torch.tensor([[1] * len(row) + [0] * (length - len(row)) for row in rows])
        loss = model(input_ids=ids, attention_mask=mask, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 20 == 0 or step == steps - 1:
            elapsed_s = time.monotonic() - began
            print(f"step {step}: loss {loss.item():.4f}, {elapsed_s:.0f} s", flush=True)
    model.eval()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--tools", type=Path, required=True, help="JSON list of tool schemas")
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()

    import torch

    torch.manual_seed(given.seed)
    torch.set_num_threads(1)
    tools = json.loads(given.tools.read_text())
    tokenizer = build_tokenizer(tools)
    model = build_model(tokenizer)
    fit(model, tokenizer, tools, steps=given.steps, batch=given.batch, seed=given.seed)
    model.to(torch.bfloat16).save_pretrained(given.out)
    tokenizer.save_pretrained(given.out)
    print(f"saved {given.out}: {sum(p.numel() for p in model.parameters()):,} parameters")


if __name__ == "__main__":
    main()
