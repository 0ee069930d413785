"""Episode: what a library that brings its own loop sees of an environment."""

from __future__ import annotations

from types import SimpleNamespace

import gymnasium
import pytest

import agent_r1_gym  # noqa: F401 - registers the environments
from agent_r1_gym.errors import ConfigurationError, InfrastructureError
from agent_r1_gym.integrations import openenv
from agent_r1_gym.integrations.episode import ChatEpisode, initial_messages
from agent_r1_gym.registry import make_text_env
from agent_r1_gym.run.player import task_rows
from tests.kit.foreign import WINDOW
from tests.kit.small_env import call

SEARCH = '<tool_call>{"name": "search", "arguments": {"query": "the composer"}}</tool_call>'


def fiction(**options):
    return make_text_env("AgentR1/FictionQA-v0", {"questions": 5, "reward": "process", **options})


def test_each_turn_is_answered_with_what_is_new() -> None:
    env = fiction()
    episode = ChatEpisode(env, task_index=3)
    question = episode.chat()
    assert [message["role"] for message in question] == ["system", "user"]
    assert question == initial_messages(fiction(), task_rows(env)[3])
    new = episode.step_chat(SEARCH)
    assert [message["role"] for message in new] == ["tool"]
    assert episode.chat() == [*question, {"role": "assistant", "content": SEARCH}, *new]
    gold = env.unwrapped.task.answers[0]
    assert episode.step_chat(f"<answer>{gold}</answer>") == []
    assert episode.ended
    assert sum(value * weight for value, weight in episode.weighted_terms.values()) == pytest.approx(
        episode.record().episode_return
    )
    assert episode.weighted_terms["em"] == (1.0, 1.0)


@pytest.mark.parametrize("mode", ["drop", "drop_turns", "summary"])
def test_after_a_window_moved_on_the_whole_history_is_sent(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    observation = SimpleNamespace(model_construct=lambda **fields: fields)
    monkeypatch.setattr(openenv, "_openenv_classes", lambda: {"Observation": observation})
    session = openenv._Session(lambda: fiction(context_window=1, context_mode=mode), (0,) * 5, False, is_quick=True)
    session.reset(task_index=0)
    first, second = (session.step(SimpleNamespace(text=SEARCH.replace("the", name))) for name in ("one", "two"))
    assert ([message["role"] for message in first["new_messages"]], "messages" in first) == (["tool"], False)
    episode = session._episode
    assert episode is not None
    assert second["info"]["context_rewritten"]
    assert second["text"] == episode.observation != ""
    assert second["new_messages"] == second["messages"] == episode.chat()


def test_an_end_from_outside_pays_what_the_environment_says() -> None:
    episode, bare = ChatEpisode(fiction(), task_index=0), fiction()
    bare.reset(options={"task_index": 0})
    before = episode.step_chat(SEARCH)
    _, reward, *_ = bare.step(SEARCH)
    assert before
    episode.truncate()
    assert episode.record().episode_return == pytest.approx(reward + bare.unwrapped.truncate())


def test_what_cannot_be_appended_is_refused_by_name() -> None:
    episode = ChatEpisode(make_text_env(WINDOW, {}), task_index=0)
    for _ in range(3):
        episode.raise_if_invalid()
        episode.step_chat(call("long " * 60))
        if episode.info["context_rewritten"]:
            break
    with pytest.raises(ConfigurationError, match=r"Stranger/Window-v0 rewrote the history \(such as `ContextWindow`\)"):
        episode.raise_if_invalid()
    episode.step_chat(call("down"))
    with pytest.raises(InfrastructureError, match="the backend is down"):
        episode.raise_if_invalid()


def test_an_environment_without_tasks_has_rows_of_seeds_and_its_reward() -> None:
    env = gymnasium.make("AgentR1/FrozenLakeText-v0")
    rows = task_rows(env, 3, first_seed=7)
    assert [row["seed"] for row in rows] == [7, 8, 9]
    episode = ChatEpisode(env, seed=rows[0]["seed"])
    assert [message["role"] for message in episode.step_chat("right")] == ["user"]
    assert episode.weighted_terms == {"reward": (0.0, 1.0)}
