"""Programs on vLLM: tokens continue as the program does, log-probs are exact, failures pay nothing, training learns."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from agent_r1_gym.core.types import Task
from agent_r1_gym.run.player import Player, evaluation_jobs
from agent_r1_gym.run.record import Trajectory
from agent_r1_gym.run.token_session import TokenLimits
from tests.kit.programs import Client, program_env, user
from tests.kit.say_env import COLOURS, save_model
from tests.trainers.rollouts.test_programs import check_logprobs, contexts
from tests.trainers.vllm.say import AGENT, learns_in_twenty_steps
from trainers.rollouts.chat_format import ChatFormat
from trainers.rollouts.request_engine import RequestEngine, SamplingOptions
from trainers.rollouts.vllm_backend import VLLMBackend, VLLMOptions

pytest.importorskip("vllm", reason="vLLM lives in an environment of its own: make test-vllm")
pytestmark = [pytest.mark.adapters, pytest.mark.slow]

TASKS = [Task(str(number), f"say {COLOURS[number % 3]}", ("red",)) for number in range(12)]


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., list[Trajectory]]]:
    """Has a program play episodes on vLLM, and checks their log-probs."""
    folder = save_model(tmp_path_factory.mktemp("model"), tied=False)
    model, chat = AutoModelForCausalLM.from_pretrained(folder), ChatFormat(AutoTokenizer.from_pretrained(folder))
    backend = VLLMBackend(VLLMOptions(model=folder, max_length=256, dtype="float32", max_num_seqs=8))
    options = SamplingOptions(max_new_tokens=6, stop_token_ids=chat.stop_ids)

    def play(program: Callable[..., Any], episodes: int) -> list[Trajectory]:
        make = functools.partial(program_env, program, tasks=TASKS[:episodes], markup=chat.markup)
        player, records = Player(make, chat=chat, limits=TokenLimits(64, 192)), list[Trajectory]()
        engine = RequestEngine(backend, options, slots=4, max_length=256)
        player.play(evaluation_jobs(range(episodes)), engine, records.append)
        player.close()
        for record in records:
            if record.infrastructure_error is None:
                check_logprobs(model, record)
        return sorted(records, key=lambda record: record.task_index)

    yield play
    backend.close()


def test_conversations_continue_and_begin_anew(played: Callable[..., list[Trajectory]]) -> None:
    def program(task: str, base_url: str, key: str) -> None:
        client = Client(base_url, key)
        main, sub = [user(task)], [user("say a colour")]
        for _ in range(2):
            main += [client.chat(main), user("go on")]
        sub += [client.chat(sub), user("and")]
        for _ in range(2):  # the first of them continues what the sub-agent interrupted
            main += [client.chat(main), user("go on")]
        client.chat([user("summary"), *main[-2:]])

    for record in played(program, 6):
        assert record.infrastructure_error is None
        assert [context.turns for context in record.contexts] == [2, 1, 2, 1]
        rows = [ids for ids, _ in contexts(record)]
        assert rows[3][: len(rows[1])] == rows[1]
        assert sum(record.tokens.loss_mask) == sum(end - start for start, end in record.tokens.spans)


def test_a_program_that_fails_is_lost_and_leaves_the_others(played: Callable[..., list[Trajectory]]) -> None:
    def program(task: str, base_url: str, key: str) -> None:
        client = Client(base_url, key)
        messages = [user(task)]
        messages += [client.chat(messages), user("go on")]
        if "green" in task:
            raise RuntimeError("killed")
        client.chat(messages)

    records = played(program, 12)
    assert [record.infrastructure_error is not None for record in records] == [False, True, False] * 4
    assert all(len(record.turns) == 2 for record in records if record.infrastructure_error is None)


@pytest.mark.parametrize("lora", [False, True], ids=["whole", "lora"])
def test_twenty_steps_learn_through_a_program(tmp_path: Path, lora: bool) -> None:
    trainer = learns_in_twenty_steps(
        tmp_path / "run", save_model(tmp_path / "model"), lora=lora, env_kwargs={"agent": AGENT}
    )
    assert trainer.backend.version == 20
    trainer.backend.close()
