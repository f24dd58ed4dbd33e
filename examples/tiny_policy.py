"""A tiny model, made here, behind a server that returns token ids and logprobs as vLLM does.

    python examples/tiny_policy.py DIRECTORY --port 8100

A token is a character, the weights are random, and nothing is downloaded. The other examples use it
in place of a model and of vLLM, so that they run on any CPU; your own scripts do not need it.
"""

from __future__ import annotations

import argparse
import json
import threading
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

SPECIALS = ["<|pad|>", "<|start|>", "<|end|>"]
TEMPLATE = (
    "{% for m in messages %}{{ '<|start|>' + m.role + '\\n' + (m.content or '') + '<|end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|start|>assistant\\n' }}{% endif %}"
)


def make(
    directory: Path, *, prompt: Sequence[Any] = (), answers: Sequence[str] = (), seed: int = 0
) -> None:
    """Write a model and its tokenizer, unless they are there.

    After a conversation like `prompt` it gives one of the `answers`, any of them.
    """
    if (directory / "config.json").exists():
        return
    import torch
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

    characters = ["\n", *map(chr, range(32, 127))]
    vocabulary = {text: number for number, text in enumerate([*SPECIALS, *characters])}
    made = Tokenizer(models.WordLevel(vocabulary, unk_token="?"))
    made.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    made.decoder = decoders.Fuse()
    made.add_special_tokens([AddedToken(each, normalized=False) for each in SPECIALS])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=made,
        pad_token="<|pad|>",
        eos_token="<|end|>",
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = TEMPLATE
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=len(vocabulary),
        hidden_size=48,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=24,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
    )
    model = Qwen3ForCausalLM(config)
    if answers:
        start = tokenizer.apply_chat_template(
            list(prompt), add_generation_prompt=True, tokenize=True, return_dict=False
        )
        fit(model, start, [tokenizer.encode(f"{each}<|end|>") for each in answers])
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)


def fit(model: Any, prompt: list[int], answers: list[list[int]]) -> None:
    """Teach the answers, which have the same length."""
    import torch

    torch.set_num_threads(1)
    ids = torch.tensor([prompt + answer for answer in answers])
    labels = ids.clone()
    labels[:, : len(prompt)] = -100
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(60):
        model(input_ids=ids, labels=labels).loss.backward()
        optimizer.step()
        optimizer.zero_grad()


class Policy:
    """A model that samples, and whose weights may be replaced between two replies."""

    def __init__(self, directory: Path) -> None:
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer

        self.tokenizer = AutoTokenizer.from_pretrained(directory)
        self.model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
        self.version = 0
        torch.set_num_threads(1)
        self._lock = threading.Lock()

    def load(self, weights: dict[str, Any]) -> None:
        """Serve these weights from now on."""
        with self._lock:
            self.model.load_state_dict(weights)

    def sample(
        self, prompt: list[int], length: int, temperature: float = 1.0
    ) -> tuple[list[int], list[float], int]:
        """Token ids, the logprob of each, and the version that sampled them."""
        import torch

        ids: list[int] = []
        logprobs: list[float] = []
        with self._lock, torch.no_grad():
            while len(ids) < length and self.tokenizer.eos_token_id not in ids:
                logits = self.model(torch.tensor([prompt + ids])).logits[0, -1]
                scores = torch.log_softmax(logits / temperature, -1)
                chosen = int(torch.multinomial(scores.exp(), 1))
                ids.append(chosen)
                logprobs.append(float(scores[chosen]))
            return ids, logprobs, self.version

    def reply(self, body: dict[str, Any]) -> dict[str, Any]:
        """The answer to a chat completion."""
        prompt = self.tokenizer.apply_chat_template(
            body["messages"], add_generation_prompt=True, tokenize=True, return_dict=False
        )
        length = body.get("max_completion_tokens") or body.get("max_tokens") or 16
        ids, logprobs, version = self.sample(prompt, length, body.get("temperature") or 1.0)
        ended = ids[-1] == self.tokenizer.eos_token_id
        text = self.tokenizer.decode(ids, skip_special_tokens=True)
        choice = {
            "index": 0,
            "message": {"role": "assistant", "content": text},
            "finish_reason": "stop" if ended else "length",
            "token_ids": ids,
            "logprobs": {"content": [{"logprob": each} for each in logprobs]},
        }
        usage = {"prompt_tokens": len(prompt), "completion_tokens": len(ids)}
        return {
            "object": "chat.completion",
            "model": f"policy-{version}",
            "prompt_token_ids": prompt,
            "choices": [choice],
            "usage": {**usage, "total_tokens": sum(usage.values())},
        }


class Server:
    """An OpenAI-compatible server of a policy, in threads of this process: `url`, `close()`."""

    def __init__(self, policy: Policy, port: int = 0) -> None:
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                self._answer({"object": "list", "data": [{"id": "policy", "object": "model"}]})

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                self._answer(policy.reply(body))

            def _answer(self, answer: dict[str, Any]) -> None:
                found = self.path in ("/v1/models", "/v1/chat/completions")
                data = json.dumps(answer if found else {}).encode()
                self.send_response(200 if found else 404)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/v1"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directory", type=Path, help="of the model; made if it is not there")
    parser.add_argument("--port", type=int, default=8100)
    given = parser.parse_args()
    make(given.directory)
    server = Server(Policy(given.directory), given.port)
    print(server.url, flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main()
