"""Supervised fine-tuning with TRL on what a run sampled, token for token.

hermes-queue sink tokens --out sft.jsonl --run run1 --min-score 1 --until-done
python examples/sft_from_run.py sft.jsonl --model MODEL --steps 100
"""

from __future__ import annotations

import argparse

from datasets import load_dataset
from trl import SFTConfig, SFTTrainer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", help="written by `hermes-queue sink tokens`, or `export`")
    parser.add_argument("--model", required=True, help="path or name of the model that sampled")
    parser.add_argument("--out", default="results/sft", help="directory of the checkpoints")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--batch", type=int, default=4, help="rows per step and device")
    parser.add_argument("--cpu", action="store_true")
    given = parser.parse_args()

    rows = load_dataset("json", data_files=given.data, split="train")
    trainer = SFTTrainer(
        given.model,
        args=SFTConfig(
            output_dir=given.out,
            max_steps=given.steps,
            per_device_train_batch_size=given.batch,
            max_length=None,  # `--max-length` of the sink leaves out what is too long
            logging_steps=1,
            use_cpu=given.cpu,
            bf16=not given.cpu,
            model_init_kwargs={"dtype": "float32" if given.cpu else "bfloat16"},
            report_to=[],
        ),
        # Ids and labels as they are: nothing is tokenised again.
        train_dataset=rows.select_columns(["input_ids", "labels"]),
    )
    trainer.train()
    for each in trainer.state.log_history:
        if "loss" in each:
            print(f"step {each['step']:3}  loss {each['loss']:.6f}")


if __name__ == "__main__":
    main()
