"""tau2-bench's own files: every gold player passes, and doing nothing passes as often as it officially does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agent_r1_gym.envs.tau2.env import Tau2BankingEnv, Tau2Env
from agent_r1_gym.envs.tau2.grading import user_calls
from agent_r1_gym.envs.tau2.sample import sample_files
from agent_r1_gym.envs.tau2.tasks import Tau2Task
from agent_r1_gym.envs.tau2.users import MESSAGE_USER
from tests.kit.data import shared_file
from tests.kit.environments import play_script


def real(domain: str) -> Tau2Env:
    return Tau2Env(domain=domain, dataset=shared_file("tau2/retail_tasks.json").parent, split="base")


@pytest.mark.parametrize(
    ("domain", "number", "untouched", "passed"),
    [("retail", 114, 11, 11), ("airline", 50, 24, 23), ("telecom", 20, 20, 0)],
)
def test_gold_actions_pass_everywhere_and_doing_nothing_where_nothing_is_to_be_done(
    domain: str, number: int, untouched: int, passed: int
) -> None:
    """Doing nothing leaves 24 databases of the airline as they should be.

    In one of these tasks the agent must also communicate something. Telecom grades what works in the end.
    """
    env = real(domain)
    assert len(env.tasks) == number
    assert [play_script(env, index)[0] for index in range(number)] == [1.0] * number
    rewards = [play_script(env, index, "talk_only") for index in range(number)]
    assert sum(reward for reward, _ in rewards) == passed
    assert sum(info["reward_terms"]["missing_write"] == 0 for _, info in rewards) == untouched


@pytest.mark.slow
def test_the_bank_is_solved_by_its_gold_actions_and_by_nothing_less(tmp_path: Path) -> None:
    """The files without tau2-bench's policies, which are not part of the data that tests may have."""
    for name in ("db.json", "tasks.json", "documents.jsonl"):
        (tmp_path / f"banking_{name}").symlink_to(shared_file(f"tau2/banking_{name}"))
    (tmp_path / "banking_prompts").mkdir()
    for name, text in sample_files("banking")["prompts"].items():
        (tmp_path / "banking_prompts" / f"{name}.md").write_text(text)
    env = Tau2BankingEnv(dataset=tmp_path)
    assert len(env.tasks) == 97
    assert [play_script(env, index)[0] for index in range(97)] == [1.0] * 97
    assert [play_script(env, index, "talk_only")[0] for index in range(97)] == [0.0] * 97
    assert [play_spoken(env, index) for index in range(97)] == [1.0] * 97


def play_spoken(env: Tau2Env, index: int) -> float:
    """Plays the gold actions, and talks to the customer in plain words; returns the reward."""
    env.reset(options={"task_index": index})
    task = env.task
    assert isinstance(task, Tau2Task)
    reward, ended = 0.0, False
    while not ended:
        made, plan = [], list(task.actions or ())
        for step in env.transitions:
            for call, outcome in zip(step.parsed.calls, step.outcomes, strict=True):
                made += user_calls(outcome) if call.name == MESSAGE_USER else [call]
        for call in made:
            done = next((action for action in plan if action.call.key == call.key), None)
            if done is not None:
                plan.remove(done)
        turn: Any = "Everything is done. Is there anything else that I can help you with?"
        if plan and not plan[0].by_user:
            turn = plan[0].call
        elif plan:
            turn = SPOKEN[plan[0].call.name].format(**plan[0].call.arguments)
        elif any(action.call.name == "transfer_to_human_agents" for action in task.actions or ()):
            turn = "YOU ARE BEING TRANSFERRED TO A HUMAN AGENT."
        _, reward, terminated, truncated, _ = env.step(env.parser.format_turn(turn))
        ended = terminated or truncated
    return reward


SPOKEN = {
    "apply_for_credit_card": "I recommend the {card_type}. You can apply for it now.",
    "submit_referral": "For your referral I recommend the {account_type}.",
    "submit_transaction": "Your friend still has to spend ${amount:,} with the {credit_card_type}.",
    "call_discoverable_user_tool": "I have given you {discoverable_tool_name}. Please use it with {arguments}.",
    "request_human_agent_transfer": "Is there anything else that I can help you with?",
}


def test_splits_are_the_official_ones() -> None:
    folder = shared_file("tau2/retail_tasks.json").parent
    sizes = {split: len(Tau2Env(domain="retail", dataset=folder, split=split).tasks) for split in ("train", "test")}
    assert sizes == {"train": 74, "test": 40}
