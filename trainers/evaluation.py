"""How well a local model plays: exact match by type of question, greedy, sampled, and best of several samples."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from agent_r1_gym.core import ToolEnv
from agent_r1_gym.policies import Policy, PolicyInput
from agent_r1_gym.rollout import rollout
from agent_r1_gym.scoring import exact_match
from agent_r1_gym.trajectory import Trajectory
from agent_r1_gym.types import to_chat


class LocalPolicy(Policy):
    """A transformers model in this process; each turn is decoded from the whole rendered history.

    Args:
        model: a causal language model.
        tokenizer: with a chat template, an end and a padding token.
        temperature: 0 for greedy.
        max_new_tokens: per turn.
        generator: of the samples; None: torch's own.
    """

    name = "local"

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        temperature: float = 1.0,
        max_new_tokens: int = 32,
        generator: torch.Generator | None = None,
    ) -> None:
        self._model, self._tokenizer = model, tokenizer
        self._temperature, self._max_new_tokens = temperature, max_new_tokens
        self._generator = generator

    def act(self, inputs: Sequence[PolicyInput]) -> list[str]:
        """Returns one turn per state, all decoded as one batch."""
        batch: Any = self._tokenizer.apply_chat_template(
            [to_chat(state.messages) for state in inputs],
            add_generation_prompt=True,
            padding=True,
            padding_side="left",
            return_dict=True,
            return_tensors="pt",
        )
        batch = batch.to(self._model.device)
        return [self._text(row) for row in self._decode(batch["input_ids"], batch["attention_mask"])]

    @torch.inference_mode()
    def _decode(self, ids: Tensor, mask: Tensor) -> list[list[int]]:
        """Returns the next turn after each left-padded row of `ids`, shape (B, T), filled up with padding."""
        cache = None
        running = torch.ones(len(ids), dtype=torch.bool, device=ids.device)
        turn: list[Tensor] = []
        while len(turn) < self._max_new_tokens and running.any():
            positions = (mask.cumsum(1) - 1).clamp(min=0)[:, -ids.shape[1] :]
            out = self._model(
                ids,
                attention_mask=mask,
                position_ids=positions,
                past_key_values=cache,
                use_cache=True,
                logits_to_keep=1,
            )
            cache = out.past_key_values
            token = self._draw(out.logits[:, -1]).where(running, self._tokenizer.pad_token_id)
            turn.append(token)
            running = running & (token != self._tokenizer.eos_token_id)
            ids, mask = token[:, None], torch.cat([mask, torch.ones_like(mask[:, :1])], 1)
        return torch.stack(turn, 1).tolist()

    def _draw(self, logits: Tensor) -> Tensor:
        if self._temperature == 0:
            return logits.argmax(-1)
        probabilities = torch.softmax(logits.float() / self._temperature, -1)
        return torch.multinomial(probabilities, 1, generator=self._generator)[:, 0]

    def _text(self, row: list[int]) -> str:
        ends = (self._tokenizer.eos_token_id, self._tokenizer.pad_token_id)
        return str(self._tokenizer.decode([token for token in row if token not in ends]))


def evaluate(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    *,
    env_options: Mapping[str, Any],
    env_id: str = "AgentR1/FictionQA-v0",
    questions: int = 400,
    samples: int = 1,
    temperature: float = 1.0,
    side_by_side: int = 100,
    seed: int = 0,
) -> dict[str, float]:
    """Plays the first `questions` tasks of an environment and returns what came of it.

    Args:
        model: a causal language model.
        tokenizer: its tokenizer, with a chat template.
        env_options: options of the environment; question answering only.
        env_id: a registered id.
        questions: tasks, or all if there are fewer; below 400 the figures swing by several points.
        samples: episodes a task.
        temperature: 0 for greedy.
        side_by_side: episodes that are decoded as one batch.
        seed: of the samples.

    Returns:
        Shares in 0..1: `em` (mean exact match of all episodes), `best_em` (tasks solved by at least one of their
        samples: what selecting among the model's habits could reach), `answered`, `malformed` (episodes with a turn
        that did not parse); and `turns`, model turns an episode.
    """
    envs: list[ToolEnv] = [gymnasium.make(env_id, **env_options).unwrapped for _ in range(side_by_side)]  # type: ignore[misc]
    generator = torch.Generator(model.device).manual_seed(seed)
    policy = LocalPolicy(model, tokenizer, temperature=temperature, generator=generator)
    played = min(questions, len(envs[0].tasks))
    episodes = list(rollout(envs, policy, [index for index in range(played) for _ in range(samples)]))
    return _summary(episodes, played)


def _summary(episodes: Sequence[Trajectory], tasks: int) -> dict[str, float]:
    solved = Counter(episode.task_index for episode in episodes if _is_solved(episode))
    return {
        "em": solved.total() / len(episodes),
        "best_em": len(solved) / tasks,
        "answered": sum(episode.answer is not None for episode in episodes) / len(episodes),
        "malformed": sum(any(turn.parse_errors for turn in episode.turns) for episode in episodes) / len(episodes),
        "turns": sum(len(episode.turns) for episode in episodes) / len(episodes),
    }


def _is_solved(episode: Trajectory) -> bool:
    return episode.answer is not None and exact_match(episode.answer, episode.gold_answers) > 0
