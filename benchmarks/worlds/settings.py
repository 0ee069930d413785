"""Settings of this experiment, as data: worlds, how a tiny model is taught and trained in them, what is held back.

Numbers are those of `examples/worlds/README.md`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

_PLAYER = "script:beginner"


@dataclass(frozen=True, slots=True)
class World:
    """An environment in compact style, and a model that learns it from a beginner's demonstrations.

    Attributes:
        title: name in the table.
        env: its id.
        tasks: option that says how many tasks there are to train on, and the number.
        splits: splits that are measured, to what they hold back.
        turn_tokens: longest turn.
        episodes: demonstrations.
        steps: of GRPO.
        copying: whether what stands around the values of a call is one token (`make_model.py --copying`).
        questions: tasks per split and measurement.
        seeds: one cell each.
        rollouts: per step of GRPO.
    """

    title: str
    env: str
    tasks: tuple[str, int]
    splits: Mapping[str, str] = field(default_factory=dict)
    turn_tokens: int = 32
    episodes: int = 6000
    steps: int = 40
    copying: bool = True
    questions: int = 200
    seeds: tuple[int, ...] = (0, 1, 2)
    rollouts: int = 128

    @property
    def options(self) -> list[str]:
        """Options of the environment that are trained in, as words."""
        return ["--option", "style=compact", "--option", f"{self.tasks[0]}={self.tasks[1]}"]

    def make_model(self) -> tuple[list[str], str, bool]:
        """Returns the environments whose words the tokenizer knows, who plays them, and `copying`."""
        sized = f"{self.tasks[0]}={min(1000, self.tasks[1])}"
        return [f"{self.env} style=compact {sized}"], _PLAYER, self.copying

    def sft(self, model: str, folder: str, seed: int) -> list[str]:
        """Returns the words of `agent-r1 sft` after its name."""
        options = {
            "--model": model,
            "--from": _PLAYER,
            "--min_return": 0,
            "--episodes": self.episodes,
            "--learning_rate": 3e-3,
            "--num_train_epochs": 3,
            "--warmup_steps": 5,
            "--per_device_train_batch_size": 32,
            "--save_strategy": "no",
            "--seed": seed,
            "--output_dir": folder,
        }
        return [self.env, *self.options, *(str(word) for pair in options.items() for word in pair)]

    def train(self, taught: str, folder: str, seed: int) -> list[str]:
        """Returns the words of `agent-r1 train` after its name."""
        options = {
            "--warm_start": taught,
            "--algorithm": "grpo",
            "--beta": 0,
            "--learning_rate": 1e-3,
            "--lr_scheduler_type": "linear",
            "--warmup_steps": min(3, self.steps - 1),
            "--max_steps": self.steps,
            "--top_p": 0.95,
            "--num_generations": 8,
            "--per_device_train_batch_size": self.rollouts,
            "--gradient_checkpointing": False,
            "--max_turn_tokens": self.turn_tokens,
            "--max_prompt_length": 80,
            "--max_completion_length": 300,
            "--save_strategy": "no",
            "--seed": seed,
            "--output_dir": folder,
        }
        return [self.env, *self.options, *(str(word) for pair in options.items() for word in pair)]

    def evaluate(self, model: str, split: str, folder: str) -> list[str]:
        """Returns the words of `agent-r1`; of "train" the first tasks that are trained on are played."""
        options = {
            "--split": split,
            "--max-turn-tokens": self.turn_tokens,
            "--temperature": 1,
            "--top-p": 0.95,
            "--policy": f"local:{model}",
            "-n": self.questions,
            "--out": folder,
        }
        tasks = self.options if split == "train" else self.options[:2]
        return ["eval", self.env, *tasks, *(str(word) for pair in options.items() for word in pair)]


WORLDS: Mapping[str, World] = {
    "service-desk": World(
        "ServiceDesk",
        "ServiceDesk",
        ("tickets", 30_000),
        {"train": "nothing", "test": "lists of rules", "ood": "neighbouring kinds of rules"},
    ),
    "text2sql": World(
        "Text2SQL",
        "Text2SQL",
        ("questions", 3000),
        {"train": "nothing", "validation": "questions about these columns", "test": "questions about these columns"},
        turn_tokens=64,
        episodes=3000,
        steps=100,
        copying=False,
    ),
}
QUICK: Mapping[str, World] = {
    name: replace(world, episodes=32, steps=1, questions=3, seeds=(0,), rollouts=8, tasks=(world.tasks[0], 64))
    for name, world in WORLDS.items()
}
"""Tiny sizes, to see that everything runs."""
