"""What the trainer's benchmark runs with and what it must show: data only, and immutable."""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class Lengths:
    """Lengths of an episode, in words of one token each; the format's own tokens come to them.

    Attributes:
        name: what the lengths are like.
        question: words of the question, before the first turn; plus about ten tokens. A pair: between so and so many,
            evenly spread over the questions.
        thought: words of thinking in each turn; plus about six tokens.
        query: words of a search.
        passage: words that a search finds; plus about nine tokens.
        spread: how much thoughts differ: each has between `1 - spread` and `1 + spread` times `thought` words, drawn
            for every turn of every question.
        turns: model turns of the questions, between so and so many; None: as many as the claim is about.
        pass_size: rollouts in a pass of the update; 0: all.
        search_seconds: what a search takes.
    """

    name: str
    question: int | tuple[int, int]
    thought: int
    query: int
    passage: int
    spread: float = 0.0
    turns: tuple[int, int] | None = None
    pass_size: int = 0
    search_seconds: float = 0.0


COMPACT = Lengths("compact", question=12, thought=8, query=3, passage=8)
"""As in FictionQA's compact style: little is prefilled, so that a kept cache saves little."""
USUAL = Lengths("usual", question=96, thought=24, query=6, passage=64)
"""Nearer to what an instruct model plays: declared tools and a question, some sentences, a short passage."""
MIXED = replace(USUAL, name="mixed", spread=0.75)
"""The same in the mean, but no two thoughts are of one length, as in all real batches: a barrier costs something."""
REALISTIC = Lengths(
    "realistic", question=(300, 500), thought=40, query=6, passage=150, spread=0.75, turns=(1, 5), pass_size=8
)
"""As agents' rollouts are: prompts of 300 to 500 tokens, 1 to 5 turns; half of a padded batch is padding."""

SLOW = replace(MIXED, name="mixed, slow tool", search_seconds=0.05)
"""With a search of 50 ms, as over a network."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Sizes of one run.

    Attributes:
        rounds: values per figure; the systems take turns in each.
        model: one of `scripted.MODELS`.
        lengths: episodes to measure with.
        turns: model turns of the multi-turn episode; all but the last search.
        prompts: different questions of a batch.
        num_generations: episodes of each question.
        steps: optimiser steps per value; one more before them warms up.
        slow: episodes whose tool takes its time.
    """

    rounds: int = 5
    model: str = "tiny"
    lengths: tuple[Lengths, ...] = (COMPACT, USUAL, MIXED, REALISTIC)
    turns: int = 4
    prompts: int = 8
    num_generations: int = 8
    steps: int = 1
    slow: Lengths = SLOW

    @property
    def batch(self) -> int:
        """Episodes of a batch."""
        return self.prompts * self.num_generations


FULL = Settings()
QUICK = Settings(
    rounds=2, lengths=(COMPACT,), prompts=2, num_generations=2, steps=1, slow=replace(COMPACT, search_seconds=0.01)
)
CUDA = Settings(model="qwen2.5-0.5b", lengths=(USUAL, Lengths("long", question=256, thought=64, query=8, passage=256)))
"""For a GPU: a model of half a billion parameters."""

TARGETS = MappingProxyType(
    {
        "rollouts_several_turns": 2.0,
        "rollouts_one_turn": 1.0,
        "rollouts_slow_tool": 3.0,
        "token_several_turns": 1.15,
        "step_several_turns": 1.5,
        "step_realistic": 2.5,
        "update_realistic": 3.0,
    }
)
"""What has to be shown, all of them ratios of wall time."""
