"""A model of this process, served and talked to: the answers are those of `eval`, many at once, limits are reported."""

from __future__ import annotations

import argparse
import io
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
import urllib3

pytest.importorskip("torch", reason="the train extra is not installed")
pytest.importorskip("fastapi", reason="fastapi is not installed")
openai = pytest.importorskip("openai", reason="openai is not installed")

from agent_r1_gym.cli.agent_arguments import agent_spec_from_options, open_engine_worker  # noqa: E402
from agent_r1_gym.cli.main import build_parser, main  # noqa: E402
from agent_r1_gym.run.evaluation.run_folder import RunFolder  # noqa: E402
from agent_r1_gym.run.record import Trajectory  # noqa: E402
from agent_r1_gym.run.serving.server import ServedAgent, ServerLimits, create_app  # noqa: E402
from tests.kit.serving import running  # noqa: E402

WEIGHTS = Path(__file__).parents[3] / "trainers" / "toy" / "weights"
WHO = ["--policy", f"local:{WEIGHTS}", "--max-turn-tokens", "40"]
WORLD = ["--option", "style=compact", "--option", "entities=800", "--split", "validation"]
NUMBER = 32


def parsed(*words: str) -> argparse.Namespace:
    return build_parser("serve").parse_args(["serve", "agent", "--env", "FictionQA", *WORLD, *WHO, *words])


@contextmanager
def served(*words: str, **limits: Any) -> Iterator[str]:
    bounds = ServerLimits(**limits)
    with closing(
        open_engine_worker(agent_spec_from_options(parsed(*words), max_concurrent=bounds.max_concurrent))
    ) as engine_worker:
        agent = ServedAgent(engine_worker=engine_worker, name="toy", sampling={"temperature": 0.0, "top_p": 1.0})
        with running(lambda: create_app(agent, limits=bounds)) as url:
            yield url


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory: pytest.TempPathFactory) -> list[Trajectory]:
    out = tmp_path_factory.mktemp("runs") / "eval"
    assert main(["eval", "FictionQA", *WORLD, *WHO, "-n", str(NUMBER), "--out", str(out)]) == 0
    return RunFolder(out).episodes()


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with served() as address:
        yield address


def ask(url: str, text: str, **fields: Any) -> Any:
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=120)
    return client.chat.completions.create(model="toy", messages=[{"role": "user", "content": text}], **fields)


@pytest.mark.slow
def test_32_at_once_answer_what_eval_answers(url: str, evaluated: list[Trajectory]) -> None:
    with ThreadPoolExecutor(NUMBER) as pool:
        asked = [pool.submit(ask, url, record.question, extra_body={"trace": True}) for record in evaluated]
        answers = [future.result() for future in asked]
    assert [answer.choices[0].message.content for answer in answers] == [record.answer or "" for record in evaluated]
    for answer, record in zip(answers, evaluated, strict=True):
        assert [turn["text"] for turn in answer.trace] == [turn.action for turn in record.turns]
        assert answer.end_reason == record.end_reason
        assert answer.usage.completion_tokens == record.metrics()["completion_tokens"]
        assert answer.usage.prompt_tokens == record.metrics()["prompt_tokens"]
    assert len({record.answer for record in evaluated}) > 5


def test_a_stream_counts_tokens(url: str, evaluated: list[Trajectory]) -> None:
    record = evaluated[0]
    *_, final, usage = ask(url, record.question, stream=True, stream_options={"include_usage": True})
    assert final.end_reason == record.end_reason
    assert usage.usage.completion_tokens == record.metrics()["completion_tokens"]


def test_a_token_limit_is_applied_and_reported(url: str, evaluated: list[Trajectory]) -> None:
    for field in ("max_tokens", "max_completion_tokens"):
        answer = ask(url, evaluated[0].question, extra_body={"trace": True}, **{field: 2})
        assert answer.usage.completion_tokens == 2
        assert (answer.choices[0].finish_reason, answer.end_reason) == ("length", "max_tokens")
        assert answer.trace[0]["hit_token_limit"] is True


@pytest.mark.slow
def test_how_to_sample_may_be_asked_for(url: str, evaluated: list[Trajectory]) -> None:
    questions = [record.question for record in evaluated[:8]]

    def answers(**sampling: Any) -> list[list[str]]:
        traced = {"extra_body": {"trace": True}}
        with ThreadPoolExecutor(16) as pool:  # greedy ones in the same batches
            greedy = [pool.submit(ask, url, question, **traced) for question in questions]
            asked = [pool.submit(ask, url, question, **traced, **sampling) for question in questions]
        plain = [[turn.action for turn in record.turns] for record in evaluated[:8]]
        assert [[turn["text"] for turn in future.result().trace] for future in greedy] == plain
        return [[turn["text"] for turn in future.result().trace] for future in asked]

    hot = answers(temperature=2.0, seed=1)
    assert hot == answers(temperature=2.0, seed=1) != answers(temperature=2.0, seed=2)
    assert hot != answers(temperature=2.0, seed=1, top_p=0.01) == answers()


def test_a_question_longer_than_the_model_is_refused(url: str) -> None:
    with pytest.raises(openai.BadRequestError, match="tokens, more than"):
        ask(url, "who " * 2000)
    assert ask(url, "who ?").object == "chat.completion"


@pytest.mark.slow
def test_a_client_that_hangs_up_in_the_middle_of_a_turn_frees_the_engine() -> None:
    with served("--max-turn-tokens", "1000", "--max-turns", "50", max_concurrent=1) as url:
        stream = ask(url, "who " * 20, stream=True)
        next(iter(stream))
        stream.close()
        deadline = time.monotonic() + 20
        while urllib3.request("GET", f"{url}/health").json()["active_requests"]:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        assert ask(url, "who ?", max_tokens=8).usage.completion_tokens <= 8


@pytest.mark.slow
def test_who_chats_hears_the_same(
    evaluated: list[Trajectory], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    records = [record for record in evaluated if record.answer is not None][:3]
    typed = "".join(f"/task {record.task_index}\n{record.question}\n" for record in records)
    monkeypatch.setattr(sys, "stdin", io.StringIO(typed + "And now ?\n/trace\n"))
    assert main(["chat", "--env", "FictionQA", *WORLD, *WHO]) == 0
    out = capsys.readouterr().out
    for record in records:
        asked = out.rpartition(f"(tools run in task {record.task_index}, ")[2]
        lines = asked.splitlines()[1 : 1 + len(record.turns)]
        assert [line.startswith("  search(query=") for line in lines[:-1]] == [True] * (len(record.turns) - 1)
        assert lines[-1] == record.answer
    assert f"<answer>{records[-1].answer}</answer>\n\n[user]\nAnd now ?\n" in out
