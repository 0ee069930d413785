"""What a run says of itself is true."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from agent_r1_gym.cli.env_options import env_options
from agent_r1_gym.cli.main import build_parser
from agent_r1_gym.registry import make_text_env
from tests.kit.bandit import make_args
from trainers.running.summary import agent_card, closing, opening


def test_the_first_screen_names_what_is_trained_on_what_for_what(tmp_path: Path) -> None:
    args = make_args(tmp_path, env_id="FictionQA", num_generations=4, per_device_train_batch_size=8, max_steps=7)
    options = {"questions": 12, "reward": ["em", "agent_r1"], "reward_weights": {"agent_r1": 0.5}}
    text = opening(args, "some/model", (1_234, 5_600_000), make_text_env("FictionQA", options), 12)
    for words in (
        *("some/model: 1.23k of 5.6M parameters", "FictionQA: fiction/train (12 questions)", "1 x em + 0.5 x agent_r1"),
        *("grpo: 2 prompts x 4 rollouts per batch, 7 steps", "search", str(tmp_path)),
    ):
        assert words in text


def test_the_last_screen_gives_commands_that_work_as_they_stand(tmp_path: Path) -> None:
    options = {"style": "compact", "questions": 12, "split": "train", "system_prompt": "", "max_turns": 3}
    args = make_args(tmp_path, env_id="FictionQA", env_kwargs=options, max_turn_tokens=7)
    card = agent_card(args, "base", make_text_env("FictionQA", options))
    text = closing(str(tmp_path), card)
    assert f"--warm_start {tmp_path}" in text and f"agent-r1 chat {tmp_path}\n" in text
    (command,) = re.findall("agent-r1 (eval .*)", text)
    parsed = build_parser("eval").parse_args(shlex.split(command))
    del options["split"]
    assert env_options(parsed) == options
    assert (parsed.max_turn_tokens, parsed.policy, parsed.out) == (7, f"local:{tmp_path}", tmp_path / "eval")


def test_the_card_says_what_is_known_and_claims_nothing_else(tmp_path: Path) -> None:
    args = make_args(tmp_path, env_id="FictionQA", env_kwargs={"style": "compact"}, learning_rate=3e-4)
    card = agent_card(args, "runs/warm", make_text_env("FictionQA", {"style": "compact"}))
    assert (card.env_id, card.env_options, card.base_model) == ("FictionQA", {"style": "compact"}, "runs/warm")
    assert card.budgets["max_completion_length"] == args.max_completion_length
    assert not card.scores
    text = card.to_markdown()
    for words in ("`FictionQA`", '{"style": "compact"}', "`runs/warm`", "| learning rate | 0.0003 |", "agent-r1-gym"):
        assert words in text
    assert "None" not in text and "No scores are claimed" in text
