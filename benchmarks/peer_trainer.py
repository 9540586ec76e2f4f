"""BERT-base question answering by transformers' Trainer, as a user would write it: one program of benchmarks/peers.py.

Random tokens in host memory, batches of 128 sequences of 384 tokens, bf16, fused AdamW, torch.compile where asked for.
Prints one line of JSON: the rate over the steps after the first ones.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time

import torch
from torch.utils.data import Dataset
from transformers import BertConfig, BertForQuestionAnswering, Trainer, TrainerCallback, TrainingArguments

TINY = {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 2, "intermediate_size": 128}


class RandomQuestions(Dataset):
    def __init__(self, count: int, sequence: int, vocabulary: int) -> None:
        self.tokens = torch.randint(vocabulary, (count, sequence))
        self.places = torch.randint(sequence, (count, 2))
        self.mask = torch.ones(sequence, dtype=torch.int64)

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        start, end = self.places[index]
        return {
            "input_ids": self.tokens[index],
            "attention_mask": self.mask,
            "start_positions": start,
            "end_positions": end,
        }


class StepTimes(TrainerCallback):
    """Takes the time at the first and the last step that count; both wait for the device."""

    def __init__(self, warm_up: int, last: int) -> None:
        self.warm_up, self.last = warm_up, last
        self.at: dict[int, float] = {}

    def on_step_end(self, args, state, control, **more) -> None:
        if state.global_step in (self.warm_up, self.last):
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            self.at[state.global_step] = time.perf_counter()

    @property
    def seconds(self) -> float:
        return self.at[self.last] - self.at[self.warm_up]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--warm-up", type=int, default=20, help="steps before the ones that count")
    parser.add_argument("--steps", type=int, default=250, help="steps that count")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--tiny", action="store_true", help="a small model, to try the script on a CPU")
    options = parser.parse_args()
    sequence = 32 if options.tiny else 384
    config = BertConfig(**(TINY if options.tiny else {}))
    total = options.warm_up + options.steps
    times = StepTimes(options.warm_up, total)
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=options.batch_size,
            max_steps=total,
            bf16=not options.tiny,
            use_cpu=options.tiny,
            optim="adamw_torch_fused",
            torch_compile=options.compile,
            dataloader_num_workers=0 if options.tiny else 4,
            dataloader_drop_last=True,
            logging_strategy="no",
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
        )
        questions = RandomQuestions(64 * options.batch_size, sequence, config.vocab_size)
        model = BertForQuestionAnswering(config)
        Trainer(model=model, args=arguments, train_dataset=questions, callbacks=[times]).train()
    samples = options.steps * options.batch_size
    print(json.dumps({"rate": samples / times.seconds, "seconds": times.seconds}))


if __name__ == "__main__":
    main()
