"""Demonstrations: who plays them, which are kept, and what of them is learned."""

from __future__ import annotations

import functools
import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent_r1_gym.core.parsing import HermesParser
from agent_r1_gym.core.tool_env import ToolEnv
from agent_r1_gym.core.types import Message, ToolCall
from agent_r1_gym.errors import ConfigurationError
from agent_r1_gym.registry import make_text_env
from agent_r1_gym.run.evaluation.conversations import run_conversations
from agent_r1_gym.run.record import Context, Trajectory, Turn
from agent_r1_gym.run.token_session import TokenLimits
from agent_r1_gym.run.trajectory_files import Conversation, read_conversations, write_rows
from agent_r1_gym.run.trust import Trust
from tests.kit.chat_families import FAMILIES
from tests.kit.data import write_jsonl
from tests.kit.helpers import TASKS, EchoTool
from tests.kit.samples import samples
from tests.trainers.algorithms.test_contexts import FreshEnv
from tests.trainers.rollouts.test_collect import CHAT, ScriptedEngine, collector, played
from trainers.algorithms.batch import tokens_of
from trainers.commands.demonstrations import (
    IGNORE_INDEX,
    contexts,
    imported,
    play_demonstrations,
    successes,
    token_rows,
)
from trainers.rollouts.chat_format import ChatFormat

PLAYED: dict[str, Any] = {"env_id": "AgentR1/FictionQA-v0", "env_options": {"questions": 12}, "policy": "oracle"}
"""Arguments of `play_demonstrations`."""


def episode(**changes: Any) -> Trajectory:
    messages = (Message("user", "Why?"), Message("assistant", "<answer>b</answer>"))
    return replace(Trajectory(task_id="t0", messages=messages, turns=(Turn("a", 0.0),)), **changes)


class TestSuccesses:
    def test_right_answers_are_kept_and_returns_where_nothing_scores(self) -> None:
        right, wrong = episode(scores={"em": 1.0}), episode(scores={"em": 0.0}, turns=(Turn("a", 0.5),))
        paid, unpaid = episode(turns=(Turn("a", 0.5),)), episode()
        lost = episode(scores={"em": 1.0}, infrastructure_error="search: timeout")
        assert successes([right, wrong, paid, unpaid, lost], min_return=None) == [right, paid]

    def test_a_smallest_return_takes_the_place_of_the_scorer(self) -> None:
        records = [episode(scores={"em": 1.0}), episode(turns=(Turn("a", 0.5), Turn("b", 0.25)))]
        assert successes(records, min_return=0.75) == [records[1]]
        assert successes(records, min_return=0.8) == []


class TestPlayed:
    def test_the_oracle_plays_the_training_tasks_once(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        env = make_text_env("FictionQA", {"questions": 12})
        run = play_demonstrations(tmp_path / "run", env, **PLAYED, episodes=5)
        records = run.episodes()
        assert [record.task_index for record in records] == list(range(5))
        assert all(record.solved for record in records)
        before = run.episodes_path.read_bytes()
        play_demonstrations(tmp_path / "run", env, **PLAYED, episodes=5)  # what is there is not played again
        assert run.episodes_path.read_bytes() == before

    def test_the_oracle_plays_the_first_tasks_whose_solution_it_knows(self, tmp_path: Path) -> None:
        """The others it could only answer, which teaches guessing; another policy plays them all."""
        rows = [
            {"input": f"{n} rows of 2 trees and 2 of {n} cats: how many trees?", "target": 2 * n} for n in range(3, 6)
        ]
        rows += [{"input": f"Cy has {n} cups and breaks 2. How many are left?", "target": n - 2} for n in range(7, 12)]
        options = {"dataset": str(write_jsonl(tmp_path / "train.jsonl", rows))}
        env, played = make_text_env("SVAMP", options), {"env_id": "AgentR1/SVAMP-v0", "env_options": options}
        run = play_demonstrations(tmp_path / "run", env, **played, policy="oracle", episodes=4)
        assert [record.task_index for record in run.episodes()] == [3, 4, 5, 6]
        assert all(turns == 2 for turns in (len(record.turns) for record in run.episodes()))
        run = play_demonstrations(tmp_path / "others", env, **played, policy="script:quoter", episodes=4)
        assert [record.task_index for record in run.episodes()] == [0, 1, 2, 3]
        options = {"dataset": str(write_jsonl(tmp_path / "test.jsonl", rows[:3]))}
        with pytest.raises(ConfigurationError, match=r"knows the answers of the 3 tasks of .*, but no solution"):
            play_demonstrations(
                tmp_path / "none",
                make_text_env("SVAMP", options),
                **{**played, "env_options": options},
                policy="oracle",
            )

    def test_tasks_are_shuffled_by_the_seed_before_the_first_are_taken(self, tmp_path: Path) -> None:
        rows = [{"input": f"Cy has {n} cups and breaks 2. How many are left?", "target": n - 2} for n in range(7, 40)]
        rows[::3] = [{**row, "target": 1000} for row in rows[::3]]  # no solution is known
        options = {"dataset": str(write_jsonl(tmp_path / "train.jsonl", rows))}
        env, played = make_text_env("SVAMP", options), {"env_id": "AgentR1/SVAMP-v0", "env_options": options}

        def drawn(policy: str, seed: int, episodes: int) -> list[int]:
            folder = tmp_path / f"{policy}-{seed}-{episodes}"
            run = play_demonstrations(folder, env, **played, policy=policy, episodes=episodes, shuffle=True, seed=seed)
            return [record.task_index for record in run.episodes()]

        few, more, other = drawn("oracle", 1, 6), drawn("oracle", 1, 12), drawn("oracle", 2, 6)
        assert set(few) < set(more) and few != other and max(few) > 9
        assert not any(index % 3 == 0 for index in (*more, *other))
        assert drawn("script:quoter", 1, 100) == list(range(len(rows)))

    def test_who_cannot_play_is_told_before_the_first_episode(self, tmp_path: Path) -> None:
        env = make_text_env("FictionQA", {"questions": 12})
        with pytest.raises(ConfigurationError, match="Unknown policy"):
            play_demonstrations(tmp_path / "run", env, **{**PLAYED, "policy": "orcale"})
        assert not (tmp_path / "run").exists()


class TestHistories:
    def test_structured_calls_are_written_as_the_model_under_training_would(self) -> None:
        env = ToolEnv(tasks=TASKS, tools=[EchoTool()], parser=HermesParser())
        call = ToolCall("echo", {"text": "hi"}, "call_1")
        messages = (
            Message("system", "Another system turn."),
            Message("user", TASKS[1].prompt),
            Message("assistant", "I look.", tool_calls=(call,)),
            Message("tool", "echo hi", "echo", "call_1"),
            Message("assistant", "<answer>Goethe</answer>"),
        )
        (context,) = contexts([episode(task_id="t1", task_index=1, messages=messages)], env)
        history = context.messages
        _, info = env.reset(options={"task_index": 1})
        assert history[:2] == info["messages"]
        assert history[2] == Message("assistant", f"I look.\n{env.parser.format_call(call)}")
        assert history[3:] == (Message("tool", "echo hi", "echo"), messages[4])
        assert env.parser.parse(history[2].content).calls == (ToolCall("echo", {"text": "hi"}),)

    def test_structured_calls_of_another_task_are_refused(self) -> None:
        env = ToolEnv(tasks=TASKS, tools=[EchoTool()])
        messages = (Message("user", "x"), Message("assistant", "", tool_calls=(ToolCall("echo", {}),)))
        with pytest.raises(ConfigurationError, match=r"task 0 is 'other', the environment's 't0'"):
            list(contexts([episode(task_id="other", messages=messages)], env))

    def test_text_stays_as_it_was_said(self) -> None:
        record = episode()
        assert list(contexts([record], ToolEnv(tasks=TASKS))) == [Context(record.messages, 1)]

    def test_the_turns_of_shots_are_not_learned(self, tmp_path: Path) -> None:
        options = {"questions": 12, "style": "natural", "shots": 1}
        env = make_text_env("FictionQA", options)
        (record,) = play_demonstrations(
            tmp_path / "run", env, **{**PLAYED, "env_options": options}, episodes=1
        ).episodes()
        (context,) = contexts([record], env)
        said = [message for message in context.messages if message.role == "assistant"]
        assert context.turns == len(record.turns) < len(said)
        assert context.messages[context.num_prompt_messages].content == record.turns[0].action


class TestImported:
    @samples("parser", ["hermes", "search-r1", "native"])
    def test_an_exported_run_is_learned_as_the_run_itself(self, parser: str, tmp_path: Path) -> None:
        options = {"questions": 12, "style": "natural", "parser": parser, "shots": 1}
        env = make_text_env("FictionQA", options)
        run = play_demonstrations(tmp_path / "run", env, **{**PLAYED, "env_options": options}, episodes=3)
        for name in ("messages", "atif"):
            path = write_jsonl(
                tmp_path / f"{name}.jsonl", write_rows(run_conversations(run.path, trust=Trust(places=True)), name)
            )
            records = imported(read_conversations(path), env, env_id="FictionQA", source=path.name)
            assert successes(records, min_return=None) == records
            again, before = ([*contexts(each, env)] for each in (records, run.episodes()))
            for one, other in zip(again, before, strict=True):
                assert one.turns == other.turns
                for message, expected in zip(one.messages, other.messages, strict=True):
                    assert (message.role, message.content) == (expected.role, expected.content)
                    assert [call.arguments for call in message.tool_calls] == [
                        call.arguments for call in expected.tool_calls
                    ]

    def test_a_foreign_conversation_gets_the_prompt_and_the_format_of_the_environment(self) -> None:
        env = ToolEnv(tasks=TASKS, tools=[EchoTool()], parser=HermesParser())
        call = ToolCall("echo", {"text": "hi"}, "call_0")
        messages = (
            Message("system", "Another system turn."),
            Message("user", TASKS[1].prompt),
            Message("assistant", "", tool_calls=(call,)),
            Message("tool", "<answer>Kant</answer>", "echo", "call_0"),
            Message("assistant", "Goethe"),
        )
        conversation = Conversation(id="1", messages=messages, turns=2)
        (record,) = imported([conversation], env, env_id="Echo", source="file")
        _, info = env.reset(options={"task_index": 1})
        assert record.messages[:2] == info["messages"]
        assert record.messages[2].content == env.parser.format_call(call)
        assert "<answer>" not in record.messages[3].content  # a tool result cannot forge an answer
        assert record.messages[4].content == "<answer>Goethe</answer>"
        assert (record.task_id, record.task_index, successes([record], min_return=None)) == ("t1", 1, [record])
        paid = replace(conversation, rewards=(0.0, 0.0))
        assert successes(imported([paid], env, env_id="Echo", source="file"), min_return=None) == []

    def test_a_tool_that_the_environment_lacks_is_refused(self) -> None:
        messages = (Message("user", "x"), Message("assistant", "", tool_calls=(ToolCall("fly", {}, "call_0"),)))
        conversation = Conversation(id="c7", messages=messages, turns=1)
        with pytest.raises(
            ConfigurationError,
            match=r"file: the conversation 'c7' calls fly, which Echo does not have; its tools are echo",
        ):
            imported([conversation], ToolEnv(tasks=TASKS, tools=[EchoTool()]), env_id="Echo", source="file")
        with pytest.raises(ConfigurationError, match="needs an environment with tools"):
            imported([conversation], make_text_env("FrozenLakeText", {}), env_id="FrozenLakeText", source="file")


@samples("family", ["TRL qwen2_5.jinja", "TRL llama3_2.jinja", "TRL gemma3.jinja", "TRL qwen3.jinja"])
def test_labels_are_exactly_what_the_agent_says(family: str, tmp_path: Path) -> None:
    chat = ChatFormat(FAMILIES[family].tokenizer(tmp_path / "tokenizer"))
    env = make_text_env("FictionQA", {"questions": 12})
    records = play_demonstrations(tmp_path / "run", env, **PLAYED, episodes=3).episodes()
    for context in contexts(records, env):
        learned = [
            chat.tokenizer.decode([token for token in row["labels"] if token != IGNORE_INDEX])
            for row in token_rows(chat, context.messages)
        ]
        said = [message.content for message in context.messages if message.role == "assistant"]
        assert len(said) > 1
        assert "".join(learned) == "".join(f"{text}{chat.template.stop_text}" for text in said)


WINDOWS: dict[str, tuple[str, dict[str, Any]]] = {
    "whole history": ("oracle", {}),
    "drop": ("oracle", {"style": "natural", "context_window": 1}),
    "drop_turns": ("oracle", {"context_window": 1, "context_mode": "drop_turns"}),
    "two turns": ("oracle", {"context_window": 2, "context_mode": "drop_turns"}),
    "summary": ("script:summariser", {"context_window": 1, "context_mode": "summary", "notebook": False}),
}
"""Who plays LongRead, and below which window."""


def trained_on(record: Trajectory) -> list[tuple[list[int], list[int]]]:
    """The contexts of a rollout as the trainer has them: ids, and which of them were sampled."""
    tokens = tokens_of(record)
    ids = [*tokens.prompt_ids, *tokens.completion_ids]
    mask = [*[0] * len(tokens.prompt_ids), *tokens.loss_mask]
    starts = [0, *(start + len(tokens.prompt_ids) for start in tokens.context_starts), len(ids)]
    return [(ids[start:end], mask[start:end]) for start, end in itertools.pairwise(starts)]


@pytest.mark.parametrize("family", ["TRL qwen2_5.jinja", "TRL llama3_2.jinja"])
@samples("way", WINDOWS)
@pytest.mark.slow
def test_rows_are_what_the_trainer_would_train_on(way: str, family: str, tmp_path: Path) -> None:
    chat = ChatFormat(FAMILIES[family].tokenizer(tmp_path / "tokenizer"))
    policy, window = WINDOWS[way]
    options = {"style": "compact", "questions": 8, **window}
    make = functools.partial(make_text_env, "LongRead", options)
    place = {"env_id": "LongRead", "env_options": options, "policy": policy}
    for record in play_demonstrations(tmp_path / "run", make(), **place).episodes():
        rows = [
            (row["input_ids"], [int(label != IGNORE_INDEX) for label in row["labels"]])
            for context in contexts([record], make())
            for row in token_rows(chat, context.messages, opening=context.num_prompt_messages)
        ]
        games = collector(make, TokenLimits(4_096, 4_096), chat=chat)
        actions = [turn.action for turn in record.turns]
        row = {"task_index": record.task_index, "seed": record.seed}
        (rollout,) = games.collect([row], ScriptedEngine(*actions, chat=chat))
        assert rollout.episode_return == record.episode_return == 1.0
        assert rollout.contexts == record.contexts
        assert rows == trained_on(rollout)
        assert (len(rows) > 1) is (way != "whole history")
        learned = [token for ids, mask in rows for token, own in zip(ids, mask, strict=True) if own]
        said = [chat.tokenizer.decode(learned).count(action) for action in set(actions)]
        assert sum(said) >= len(set(actions))


def test_a_context_that_somebody_else_rewrites_is_a_row_of_its_own() -> None:
    """An environment that is no `ToolEnv` says so itself: what it observes then is all that is shown."""
    record = played("yes", "no", "yes", env=FreshEnv)
    rows = [
        (row["input_ids"], [int(label != IGNORE_INDEX) for label in row["labels"]])
        for context in contexts([record], FreshEnv())
        for row in token_rows(CHAT, context.messages, opening=context.num_prompt_messages)
    ]
    assert rows == trained_on(record)
    assert [message.content for message in record.transcript[:4]] == ["who", "yes", "who 1", "no"]
