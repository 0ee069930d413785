"""Programs on the cached engine: their tokens, masks and log-probs are those of the environment's own loop."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer

from agent_r1_gym.core.tool_env import ToolEnv
from agent_r1_gym.core.types import Task, ToolCall
from agent_r1_gym.registry import make_text_env
from agent_r1_gym.run.engines import when_ready
from agent_r1_gym.run.player import Player, evaluation_jobs
from agent_r1_gym.run.record import Trajectory
from agent_r1_gym.run.session import Job
from agent_r1_gym.run.token_session import TokenLimits
from tests.kit import programs
from tests.kit.chat_families import FAMILIES
from tests.kit.helpers import EchoTool
from tests.kit.programs import ECHO, Client, loop, program_env, user
from trainers.rollouts.chat_format import ChatFormat
from trainers.rollouts.local_model import wrap_model
from trainers.rollouts.request_engine import RequestEngine, SampledTurn, SamplingOptions, TurnRequest
from trainers.rollouts.slot_engine import sample
from trainers.toy.quickstart import SHIPPED, load

pytest.importorskip("uvicorn")
pytest.importorskip("fastapi")

OPTIONS = {"style": "compact", "entities": 100, "questions": 20}


@pytest.fixture(scope="module")
def model() -> Any:
    return load(SHIPPED).eval()


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(SHIPPED)


def play(model: Any, tokenizer: Any, questions: int, **options: Any) -> list[Trajectory]:
    """Plays the first questions at temperature 1."""
    local = wrap_model(model, tokenizer, sampling={"temperature": 1.0, "max_new_tokens": 24}, slots=4)
    make = functools.partial(make_text_env, "FictionQA", {**OPTIONS, **options}, markup=local.chat.markup)
    player, records = Player(make, chat=local.chat, limits=local.limits), list[Trajectory]()
    player.play(evaluation_jobs(range(questions)), local.engine, records.append)
    player.close()
    return sorted(records, key=lambda record: record.task_index)


def contexts(record: Trajectory) -> list[tuple[list[int], int]]:
    """Returns for each turn the tokens up to its end, and where it begins."""
    tokens = record.tokens
    assert tokens is not None
    ids, starts = tokens.completion_ids, tokens.context_starts
    found = []
    for start, end in tokens.spans:
        opened = [position for position in starts if position <= start]
        before = list(ids[opened[-1] : start]) if opened else [*tokens.prompt_ids, *ids[:start]]
        found.append(([*before, *ids[start:end]], len(before)))
    return found


def check_logprobs(model: Any, record: Trajectory) -> None:
    """Each log-prob is that of a forward pass over the tokens that the turn was sampled after."""
    for (ids, start), (first, last) in zip(contexts(record), record.tokens.spans, strict=True):
        with torch.no_grad():
            logprobs = model(torch.tensor([ids])).logits[0].float().log_softmax(-1)
        expected = [float(logprobs[at - 1, ids[at]]) for at in range(start, len(ids))]
        assert record.tokens.logprobs[first:last] == pytest.approx(expected, abs=1e-5)


def test_tokens_are_those_of_the_own_loop(model, tokenizer):
    own, played = play(model, tokenizer, 12), play(model, tokenizer, 12, agent=loop)
    # A program gets a malformed call as text, and ends; the environment's own loop explains the mistake.
    pairs = [(a, b) for a, b in zip(own, played, strict=True) if not any(turn.parse_errors for turn in a.turns)]
    assert len(pairs) >= 6
    for record, expected in pairs:
        for name in ("prompt_ids", "completion_ids", "loss_mask", "spans", "context_starts"):
            assert getattr(record.tokens, name) == getattr(expected.tokens, name)
        assert [p is None for p in record.tokens.logprobs] == [p is None for p in expected.tokens.logprobs]
        sampled = [logprob for logprob in record.tokens.logprobs if logprob is not None]
        assert sampled == pytest.approx([p for p in expected.tokens.logprobs if p is not None], abs=1e-5)
        assert (record.messages, record.turns, record.scores) == (expected.messages, expected.turns, expected.scores)


def test_token_counts_are_those_of_the_record(model, tokenizer, monkeypatch):
    counts = list[tuple[int, int]]()

    class CountingClient(Client):
        def send(self, path: str, body: Any = None, *, raw: bytes | None = None) -> tuple[int, Any]:
            status, answer = super().send(path, body, raw=raw)
            if path == "/chat/completions":
                counts.append((answer["usage"]["prompt_tokens"], answer["usage"]["completion_tokens"]))
            return status, answer

    monkeypatch.setattr(programs, "Client", CountingClient)
    (record,) = play(model, tokenizer, 1, agent=loop)
    assert len(record.turns) > 1
    assert counts == [(turn.prompt_tokens, turn.completion_tokens) for turn in record.turns]
    assert counts == [(start, len(ids) - start) for ids, start in contexts(record)]


class OneByOne:
    """A backend that answers one request after the other, with a pass over the whole context for each token."""

    def __init__(self, model: Any) -> None:
        self.model, self.requests = model, list[tuple[TurnRequest, Future[SampledTurn]]]()

    def submit(self, request: TurnRequest) -> Future[SampledTurn]:
        self.requests.append((request, Future()))
        return self.requests[-1][1]

    def step(self) -> bool:
        if not self.requests:
            return False
        request, future = self.requests.pop(0)
        rng, ids, logprobs = random.Random(request.seed), list[int](), list[float]()
        while len(ids) < request.max_tokens and (not ids or ids[-1] not in request.options.stop_token_ids):
            with torch.no_grad():
                logits = self.model(torch.tensor([[*request.context, *ids]])).logits[:, -1]
            drawn = torch.tensor([rng.random()], dtype=torch.float64)
            token, logprob = sample(logits, request.options, uniforms=drawn)
            ids.append(int(token))
            logprobs.append(float(logprob))
        future.set_result(SampledTurn(ids, logprobs))
        return True

    def abort_all(self) -> None:
        self.requests.clear()


def test_an_engine_of_requests_plays_the_same_tokens(model, tokenizer):
    """The engine of vLLM: each turn is a request with its whole context."""
    local = wrap_model(model, tokenizer, sampling={"temperature": 1.0, "max_new_tokens": 24}, slots=4)
    options = SamplingOptions(max_new_tokens=24, stop_token_ids=local.chat.stop_ids)
    played = []
    for agent in ({}, {"agent": loop}):
        make = functools.partial(make_text_env, "FictionQA", {**OPTIONS, **agent}, markup=local.chat.markup)
        player, records = Player(make, chat=local.chat, limits=local.limits), list[Trajectory]()
        engine = RequestEngine(OneByOne(model), options, slots=4, max_length=512)
        player.play(evaluation_jobs(range(5)), engine, records.append)
        player.close()
        played.append(sorted(records, key=lambda record: record.task_index))
    pairs = [(a, b) for a, b in zip(*played, strict=True) if not any(turn.parse_errors for turn in a.turns)]
    assert len(pairs) >= 3
    for expected, record in pairs:
        assert (record.tokens, record.turns) == (expected.tokens, expected.turns)


class FixedTurns:
    """An engine whose model writes the same turns in every episode."""

    def __init__(self, actions: Sequence[str]) -> None:
        self.actions = actions

    def run(self, sessions: Iterable[Any]) -> None:
        for session in when_ready(sessions):
            for action in self.actions:
                ids = session._chat.turn_ids(action)
                reply = session.finish_turn(ids, [0.0] * len(ids), True)
                if (reply.result() if isinstance(reply, Future) else reply) is None:
                    break
            assert session.ended

    def close(self) -> None:
        """Nothing to free."""


NATIVE = ("TRL qwen3.jinja", "TRL llama3_1.jinja", "TRL gptoss.jinja", "Mistral 7B v0.3 with tools")


@pytest.mark.parametrize("family", [*NATIVE, "SmolLM2, InternLM and other ChatML"])
def test_every_format_is_that_of_the_own_loop(family, tmp_path):
    """Calls in the model's own format, where it has one, thoughts that the template drops, results and answers."""
    chat = ChatFormat(FAMILIES[family].tokenizer(tmp_path))
    options = {"parser": "native" if family in NATIVE else "hermes", "system_prompt": "", "markup": chat.markup}
    tasks, tool = [Task("t0", "Say hi.", ("hi",))], EchoTool(deterministic=False)
    own = ToolEnv(tasks=tasks, tools=[tool], **options)
    call = own.parser.format_call(ToolCall("echo", {"text": "hi"}))
    actions = [call, own.parser.format_thought("hm", call), call, own.parser.format_answer("hi")]
    records = list[Trajectory]()
    for env in (own, program_env(loop, tools=[tool], **options)):
        player = Player(lambda env=env: env, chat=chat, limits=TokenLimits(4096, 8192))
        player.play([Job(0, seed=0)], FixedTurns(actions), records.append)
        player.close()
    expected, record = records
    assert record.infrastructure_error is None
    assert len(record.turns) == 4
    assert (record.tokens, record.turns, record.scores) == (expected.tokens, expected.turns, expected.scores)


def test_other_tools_are_listed_to_the_model_that_gets_them(tmp_path):
    """In the model's own format the chat template lists the tools: those of each context."""

    def program(task, base_url, key):
        client = Client(base_url, key)
        client.chat([user(task)], [ECHO])
        client.chat([user("without")])

    tokenizer = FAMILIES["TRL qwen3.jinja"].tokenizer(tmp_path)
    chat, records = ChatFormat(tokenizer), list[Trajectory]()
    env = program_env(program, parser="native", markup=chat.markup)
    player = Player(lambda: env, chat=chat, limits=TokenLimits(4096, 8192))
    player.play([Job(0, seed=0)], FixedTurns(["one", "two"]), records.append)
    player.close()
    (record,) = records
    first, second = (tokenizer.decode(ids) for ids, _ in contexts(record))
    assert ("Returns the text." in first, "Returns the text." in second) == (True, False)
    assert "without" in second


def one(model: Any, tokenizer: Any, program: Callable[..., Any]) -> Trajectory:
    (record,) = play(model, tokenizer, 1, agent=program)
    assert record.infrastructure_error is None
    return record


def test_a_compacting_program_splits_where_it_rewrites(model, tokenizer):
    def program(task, base_url, key):
        client = Client(base_url, key)
        messages = [user(task)]
        for number in range(5):
            if number == 3:
                messages = [user("summary of all"), *messages[-1:]]
            messages += [client.chat(messages), user("go on")]

    record = one(model, tokenizer, program)
    assert [context.turns for context in record.contexts] == [3, 2]
    assert [len(record.tokens.context_starts), len(record.tokens.spans)] == [1, 5]
    (reason,) = [context.rewrite_reason for context in record.earlier_contexts]
    assert "summary of all" in reason
    assert record.tokens.context_starts[0] == record.tokens.spans[2][1]
    check_logprobs(model, record)
    assert Trajectory.from_dict(record.to_dict()) == record


def test_an_interrupted_conversation_keeps_its_tokens(model, tokenizer):
    def program(task, base_url, key):
        client = Client(base_url, key)
        main, sub = [user(task)], [user("a question of a sub-agent")]
        for _ in range(3):
            main += [client.chat(main), user("go on")]
            sub += [client.chat(sub), user("and")]

    record = one(model, tokenizer, program)
    assert len(record.turns) == len(record.tokens.spans) == 6
    assert len(record.tokens.context_starts) == 5
    rows = [ids for ids, _ in contexts(record)]
    for number in (2, 3, 4, 5):  # each continues the tokens of the turn before the other's
        assert rows[number][: len(rows[number - 2])] == rows[number - 2]
    assert sum(record.tokens.loss_mask) == sum(end - start for start, end in record.tokens.spans)
    check_logprobs(model, record)


def test_a_failed_program_is_lost_and_leaves_the_others(model, tokenizer):
    def program(task, base_url, key):
        client = Client(base_url, key)
        client.chat([user(task)])
        if number_of[task] % 2:
            raise RuntimeError("killed")

    def early(task, base_url, key):
        if number_of[task] % 2:
            raise RuntimeError("killed")
        program(task, base_url, key)

    env = make_text_env("FictionQA", OPTIONS)
    number_of = {env.task_prompt(task): number for number, task in enumerate(env.tasks)}
    for agent in (program, early):
        records = play(model, tokenizer, 6, agent=agent)
        assert [record.infrastructure_error is not None for record in records] == [False, True] * 3


def test_a_first_request_that_does_not_fit_loses_its_episode(model, tokenizer):
    def program(task, base_url, key):
        Client(base_url, key).chat([user("word " * (3000 if "?" in task else 1))])

    (record,) = play(model, tokenizer, 1, agent=program)
    assert "tokens, more than the" in record.infrastructure_error
    assert record.turns == ()
