"""Trains on one batch of full length, in a process of its own, and prints the peak of its memory and the estimate.

python -m tests.trainers.pretrained_update MODEL FOLDER BF16
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

from trainers.commands.train.building import build_trainer
from trainers.config.agent import AgentConfig
from trainers.monitoring.memory import GIB, estimate_memory, max_size_inputs, setup_of, shape_of

ROWS, PROMPT, COMPLETION = 16, 512, 128


def main(model: str, folder: str, bf16: str) -> None:
    """Prints [measured, estimated], in GiB."""
    args = AgentConfig(
        output_dir=folder,
        env_id="AgentR1/Arithmetic-v0",
        per_device_train_batch_size=ROWS,
        num_generations=ROWS,
        max_prompt_length=PROMPT,
        max_completion_length=COMPLETION,
        max_turn_tokens=64,
        bf16=bf16 == "True",
        use_cpu=True,
        gradient_checkpointing=False,
        beta=0.0,
        report_to=[],
    )
    args.model_init_kwargs = {"dtype": "float32"}
    trainer: Any = build_trainer(args, model, tokenizer=AutoTokenizer.from_pretrained(model))
    trainer.create_optimizer_and_scheduler(10)
    trainer.model = trainer.model_wrapped = trainer.accelerator.prepare_model(trainer.model)
    shape, setup = shape_of(trainer), setup_of(trainer, slots=ROWS)
    assert shape is not None
    trainer.longest_prompt = setup.length - COMPLETION
    estimated = estimate_memory(shape, setup).update / GIB
    Path("/proc/self/clear_refs").write_text("5")  # the peak is counted from here
    inputs = max_size_inputs(trainer)
    inputs["prompt_ids"][:] = 1  # one group, which shares its prompt
    trainer.current_gradient_accumulation_steps = 1
    trainer.model.train()
    for _ in range(2):  # the second has the state of the optimiser
        trainer.accelerator.backward(trainer.compute_loss(trainer.model_wrapped, inputs))
        trainer.optimizer.step()
        trainer.model.zero_grad()
    peak = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    print(json.dumps([int(peak.split()[1]) / 2**20, estimated]))


if __name__ == "__main__":
    main(*sys.argv[1:])
