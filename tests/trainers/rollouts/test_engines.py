"""The engines: the same tokens from all, exact log-probs, exact distributions, no barrier, no leaks."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any
from unittest import mock

import pytest
import torch
from peft import LoraConfig, get_peft_model

from agent_r1_gym.errors import ConfigurationError, InfrastructureError
from agent_r1_gym.run.engines import NOT_YET
from tests.kit.models import STOPS, GenerateEngine, ScriptedSession, make_causal_lm, make_sessions
from tests.kit.samples import samples
from trainers.rollouts.cache import SlotCache
from trainers.rollouts.cuda_graphs import CapturedPass, DecodingGraphs, capture
from trainers.rollouts.request_engine import SamplingOptions
from trainers.rollouts.slot_engine import SlotEngine

GREEDY = SamplingOptions(max_new_tokens=12, temperature=0, stop_token_ids=STOPS)
SAMPLED = SamplingOptions(max_new_tokens=12, temperature=0.8, top_p=0.9, top_k=20, stop_token_ids=STOPS, seed=3)


def slot_engine(model: Any, options: SamplingOptions = GREEDY, **settings: Any) -> SlotEngine:
    return SlotEngine(model, options, **{"slots": 6, "max_length": 60, **settings})


def generate_engine(model: Any, options: SamplingOptions = GREEDY, *, max_length: int = 60) -> GenerateEngine:
    return GenerateEngine(model, options, max_length=max_length)


def play(engine: Any, count: int = 23, **shape: Any) -> list[ScriptedSession]:
    sessions = make_sessions(count, **shape)
    engine.run(iter(sessions))
    return sessions


def tokens(sessions: Iterable[ScriptedSession]) -> list[list[list[int]]]:
    return [session.tokens for session in sessions]


def replayed_logprobs(model: Any, session: ScriptedSession, temperature: float) -> list[float]:
    """Log-probs of the sampled tokens by one plain forward pass over the whole episode."""
    with torch.no_grad():
        logits = model(torch.tensor([session.context])).logits[0].float() / temperature
    table = torch.log_softmax(logits, dim=-1)
    return [float(table[position - 1, session.context[position]]) for position in session.sampled_at]


def assert_replays(
    model: Any, sessions: Sequence[ScriptedSession], temperature: float, *, within: float = 1e-5
) -> None:
    model.eval()
    for session in sessions:
        assert session.logprobs == pytest.approx(replayed_logprobs(model, session, temperature), abs=within)


class Captures:
    """Stands in for CUDA's capture: a replay runs the pass again, on the memory of the first inputs and logits.

    Args:
        monkeypatch: installs it.
        memory: names the memory of the cache, which must be the same in a replay; None: nothing is compared.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, memory: Any = None) -> None:
        self.memory = memory
        self.sizes: list[tuple[int, int]] = []
        self.replays = 0
        self.captured_in: Any = None
        self.pool: Any = None
        monkeypatch.setattr("trainers.rollouts.cuda_graphs.capture", self)

    def __call__(self, forward: Any, inputs: torch.Tensor, length: int, *, pool: Any) -> Any:
        memory = self.memory and self.memory(forward)
        assert pool == (self.pool if memory == self.captured_in else None)  # a pool goes with its last graph
        self.captured_in, self.pool = memory, (1, len(self.sizes))
        self.sizes.append((len(inputs), length))
        logits = torch.full_like(forward(inputs, length), float("nan"))

        def replay() -> None:
            self.replays += 1
            assert memory == (self.memory and self.memory(forward))
            logits.copy_(forward(inputs, length))

        return CapturedPass(replay, inputs, logits), self.pool


class TestAgreement:
    @pytest.mark.parametrize("attention", ["sdpa", "eager"])
    @pytest.mark.parametrize("tied", [True, False])
    @samples("kind", ["qwen3", "qwen2", "llama", "gpt2"])
    @pytest.mark.slow
    def test_greedy_tokens_equal_generate_and_logprobs_a_replay(self, kind: str, tied: bool, attention: str) -> None:
        model = make_causal_lm(kind, tied=tied, attention=attention)
        kept = play(slot_engine(model))
        anew = play(generate_engine(model))
        assert [session.turns[-1][2] for session in kept] == [session.turns[-1][2] for session in anew]
        assert tokens(kept) == tokens(anew)
        assert any(stopped for session in kept for _, _, stopped in session.turns)
        assert not all(stopped for session in kept for _, _, stopped in session.turns)
        assert_replays(model, kept, 1.0)
        assert_replays(model, anew, 1.0)

    @samples(("slots", "prefill_tokens"), [(1, 4096), (2, 1), (7, 5), (64, 50)])
    @pytest.mark.slow
    def test_slots_and_prefill_budget_change_nothing(self, slots: int, prefill_tokens: int) -> None:
        model = make_causal_lm()
        expected = play(slot_engine(model, SAMPLED, slots=23, max_length=70))
        found = play(slot_engine(model, SAMPLED, slots=slots, max_length=70, prefill_tokens=prefill_tokens))
        assert tokens(found) == tokens(expected)
        assert_replays(model, found, SAMPLED.temperature)

    @pytest.mark.slow
    def test_shared_prompts_change_nothing_and_save_prefill(self) -> None:
        model = make_causal_lm()
        with mock.patch.object(SlotCache, "move", autospec=True, side_effect=SlotCache.move) as move:
            kept = play(slot_engine(model, slots=8, max_length=70), 24, distinct_prompts=3)
        anew = play(generate_engine(model, max_length=70), 24, distinct_prompts=3)
        assert move.called
        assert tokens(kept) == tokens(anew)

    @pytest.mark.slow
    @pytest.mark.parametrize(("slots", "prefill_tokens"), [(6, 4096), (9, 33), (16, 200)])
    def test_different_prompts_with_one_beginning_compute_it_once(self, slots: int, prefill_tokens: int) -> None:
        """A system turn with shots, several lengths of it, copies of a prompt, and some that share nothing."""
        model = make_causal_lm()

        def sessions() -> list[ScriptedSession]:
            made = make_sessions(30, distinct_prompts=21)
            for number, session in enumerate(made):
                beginning = [] if number % 7 == 6 else [9 + n % 40 for n in range(70 + 9 * (number % 3))]
                session.prompt_ids = [*beginning, *session.prompt_ids]
                session.context = list(session.prompt_ids)
            return made

        fed: list[int] = []
        settings = {"slots": slots, "max_length": 180, "prefill_tokens": prefill_tokens}
        played, expected = sessions(), sessions()
        engine = slot_engine(model, **settings)
        forward = type(model).forward

        def count(self: Any, *args: Any, **inputs: Any) -> Any:
            fed.append(int(inputs["input_ids"].numel()))
            return forward(self, *args, **inputs)

        with mock.patch.object(type(model), "forward", count):
            engine.run(iter(played))
        generate_engine(model, max_length=180).run(iter(expected))
        assert tokens(played) == tokens(expected)
        assert_replays(model, played, 1.0)
        assert sum(fed) < (0.6 if slots > 6 else 0.9) * sum(len(session.context) for session in played)

    @pytest.mark.slow
    @samples("slots", [12, 2])
    def test_sizes_of_cuda_graphs_change_nothing(self, monkeypatch: pytest.MonkeyPatch, slots: int) -> None:
        """Though the cache grows while graphs of shorter lengths are in use, and with two slots these come again."""
        model = make_causal_lm()
        captured = Captures(monkeypatch, lambda forward: forward.__self__._cache.slot_layers[0].keys.data_ptr())
        options = SamplingOptions(max_new_tokens=40, temperature=1.0)
        engine = slot_engine(model, options, slots=slots, max_length=300)
        engine.cuda_graphs = True
        expected = play(slot_engine(model, options, slots=slots, max_length=300), 30)
        assert tokens(play(engine, 30)) == tokens(expected)
        assert {batch for batch, _ in captured.sizes} == {min(8, slots), slots}
        assert {64, 128} <= {length for _, length in captured.sizes} <= {64, 128, 256, 300}
        assert captured.replays > 3 * len(captured.sizes)
        assert slots > 2 or captured.sizes.count((2, 64)) > 1

    @pytest.mark.parametrize("grows_in", ["prefill", "decoding"])
    def test_graphs_are_dropped_when_the_cache_moves(self, monkeypatch: pytest.MonkeyPatch, grows_in: str) -> None:
        capacity = [8]
        captured = Captures(monkeypatch, lambda _forward: capacity[0])

        def forward(inputs: torch.Tensor, length: int) -> torch.Tensor:
            if grows_in == "decoding" and length >= capacity[0]:
                capacity[0] = 16
            return inputs.sum(1) + float(capacity[0])

        graphs = DecodingGraphs(forward, model=torch.nn.Identity(), capacity=lambda: capacity[0])
        inputs = torch.ones(2, 3)
        assert [graphs(inputs, 4).tolist() for _ in range(3)] == [[11, 11]] * 3
        assert captured.replays == 2
        if grows_in == "prefill":
            capacity[0] = 16
        assert graphs(inputs, 8).tolist() == [19, 19]
        assert graphs(inputs, 4).tolist() == [19, 19]
        assert captured.replays == 2
        assert graphs(inputs + 1, 4).tolist() == [22, 22]
        assert captured.sizes == [(2, 4), (2, 4)]

    def test_a_model_that_cannot_be_captured_decodes_without_graphs(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        tries: list[int] = []

        def refuse(*_arguments: Any, **_options: Any) -> Any:
            tries.append(1)
            raise RuntimeError("operation not permitted when stream is capturing")

        monkeypatch.setattr("trainers.rollouts.cuda_graphs.capture", refuse)
        model = make_causal_lm()
        engine = slot_engine(model, SAMPLED)
        engine.cuda_graphs = True
        expected = tokens(play(slot_engine(model, SAMPLED)))
        assert tokens(play(engine)) == expected
        later = slot_engine(model, SAMPLED)
        later.cuda_graphs = True
        assert tokens(play(later)) == expected
        assert len(tries) == 1
        (record,) = caplog.records
        assert "without CUDA graphs" in record.getMessage()

    def test_a_capture_that_fails_leaves_its_stream(self, monkeypatch: pytest.MonkeyPatch) -> None:
        streams = ["usual"]

        class Graph:
            def __init__(self, *_arguments: Any, **_options: Any) -> None: ...

            def __enter__(self) -> None:
                streams.append("of the capture")

            def __exit__(self, *_error: object) -> None:
                raise RuntimeError("capture was invalidated")

        monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: None)
        monkeypatch.setattr(torch.cuda, "graph", Graph)
        monkeypatch.setattr(torch.cuda, "current_stream", lambda: streams[-1])
        monkeypatch.setattr(torch.cuda, "set_stream", streams.append)
        with pytest.raises(RuntimeError, match="capture was invalidated"):
            capture(lambda inputs, _length: inputs, torch.ones(2, 3), 4, pool=None)
        assert streams == ["usual", "of the capture", "usual"]

    @pytest.mark.gpu
    @pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
    def test_cuda_graphs_sample_what_single_kernels_sample(self) -> None:
        model = make_causal_lm().to("cuda")
        options = SamplingOptions(max_new_tokens=40)
        played = [
            play(slot_engine(model, options, slots=12, max_length=300, enforce_eager=eager), 60)
            for eager in (False, True)
        ]
        assert tokens(played[0]) == tokens(played[1])

    @pytest.mark.slow
    def test_sessions_may_come_while_others_are_decoded(self) -> None:
        model = make_causal_lm()
        expected = play(slot_engine(model))
        sessions = make_sessions(23)

        def arriving() -> Iterator[Any]:
            first, *others = sessions
            yield first
            while not first.turns:  # would never end, did the engine wait for the next session
                yield NOT_YET
            yield from others[:11]
            while not others[10].turns:
                yield NOT_YET
            yield from others[11:]

        slot_engine(model).run(arriving())
        assert tokens(sessions) == tokens(expected)

    def test_a_session_samples_as_it_says_itself(self) -> None:
        brief, other = ScriptedSession([9] * 4, [[10]]), ScriptedSession([9] * 4, [[10]])
        brief.sampling = {"max_new_tokens": 1}  # type: ignore[attr-defined]
        options = SamplingOptions(max_new_tokens=3, temperature=0)
        slot_engine(make_causal_lm(), options).run([brief, other])
        assert [len(ids) for ids in brief.tokens] == [1, 1]
        assert [len(ids) for ids in other.tokens] == [3, 3]

    def test_a_session_that_is_cancelled_ends_within_a_token(self) -> None:
        left, stays = make_sessions(2, seed=3)
        left.interrupted = True  # type: ignore[attr-defined]
        left.script, expected = [], play(slot_engine(make_causal_lm()), 2, seed=3)[1]
        slot_engine(make_causal_lm()).run([left, stays])
        assert [len(ids) for ids in left.tokens] == [1]
        assert stays.tokens == expected.tokens

    @pytest.mark.slow
    def test_under_lora(self) -> None:
        base = make_causal_lm()
        model = get_peft_model(base, LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False))
        kept = play(slot_engine(model))
        anew = play(generate_engine(model))
        assert tokens(kept) == tokens(anew)
        assert_replays(model, kept, 1.0)
        with model.disable_adapter():
            assert tokens(play(slot_engine(model))) != tokens(kept)

    def test_bfloat16_autocast(self) -> None:
        model = make_causal_lm()
        sessions = make_sessions(6)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            slot_engine(model, slots=3).run(iter(sessions))
        for session in sessions:
            assert session.logprobs == pytest.approx(replayed_logprobs(model, session, 1.0), abs=0.2)

    def test_training_mode_and_gradients_are_restored(self) -> None:
        model = make_causal_lm().train()
        play(slot_engine(model))
        assert model.training
        assert model(torch.tensor([[9, 10]])).logits.requires_grad


class TestSeeds:
    @pytest.mark.slow
    def test_same_seed_same_tokens_and_the_next_run_differs(self) -> None:
        model = make_causal_lm()
        engine = slot_engine(model, SAMPLED, max_length=70)
        first, second = tokens(play(engine)), tokens(play(engine))
        assert first == tokens(play(slot_engine(model, SAMPLED, max_length=70)))
        assert first != second
        engine.generator.manual_seed(SAMPLED.seed)
        assert first == tokens(play(engine))

    @pytest.mark.slow
    def test_later_sessions_and_the_global_generator_do_not_matter(self) -> None:
        model = make_causal_lm()
        torch.manual_seed(1)
        long = tokens(play(slot_engine(model, SAMPLED, max_length=70)))
        torch.manual_seed(2)
        state = torch.get_rng_state()
        short = make_sessions(23)[:9]
        slot_engine(model, SAMPLED, max_length=70).run(short)
        assert tokens(short) == long[:9]
        assert torch.equal(state, torch.get_rng_state())


class LateSession(ScriptedSession):
    """Its tools run in a thread until `gate` opens."""

    def __init__(self, executor: ThreadPoolExecutor, gate: threading.Event, **script: Any) -> None:
        super().__init__(**script)
        self.executor, self.gate = executor, gate

    def finish_turn(self, ids: list[int], logprobs: list[float], stopped: bool) -> Any:
        reply = super().finish_turn(ids, logprobs, stopped)

        def tool() -> Any:
            assert self.gate.wait(20)
            return reply

        return self.executor.submit(tool)


class TestScheduling:
    def test_slots_are_refilled_lazily(self) -> None:
        everyone = make_sessions(20)
        live: list[int] = []

        def has_ended(session: ScriptedSession) -> bool:
            return len(session.turns) > len(session.script)

        def sessions() -> Iterator[ScriptedSession]:
            for index, session in enumerate(everyone):
                live.append(index + 1 - sum(map(has_ended, everyone)))
                yield session

        slot_engine(make_causal_lm(), slots=4).run(sessions())
        assert all(map(has_ended, everyone))
        assert max(live) == 4

    def test_a_late_tool_blocks_nobody(self) -> None:
        gate = threading.Event()

        class Last(ScriptedSession):
            def finish_turn(self, *turn: Any) -> Any:
                reply = super().finish_turn(*turn)
                if reply is None:
                    gate.set()
                return reply

        with ThreadPoolExecutor(1) as executor:
            late = LateSession(executor, gate, prompt=[9, 10], script=[[11], [12, 13]])
            others = [ScriptedSession(s.prompt_ids, s.script) for s in make_sessions(9)]
            last = Last([14, 15], [[16], [17]])
            model = make_causal_lm()
            slot_engine(model, slots=3).run([late, *others, last])
        alone = ScriptedSession([9, 10], [[11], [12, 13]])
        generate_engine(model).run([alone])
        assert late.tokens == alone.tokens
        assert len(late.tokens) == 3
        assert all(session.turns for session in others)

    def test_generate_engine_takes_futures_too(self) -> None:
        gate = threading.Event()
        gate.set()
        with ThreadPoolExecutor(2) as executor:
            late = [LateSession(executor, gate, prompt=s.prompt_ids, script=s.script) for s in make_sessions(5)]
            generate_engine(make_causal_lm()).run(late)
        assert tokens(late) == tokens(play(generate_engine(make_causal_lm()), 5))

    @pytest.mark.parametrize("slots", [1, 3])
    def test_no_sessions(self, slots: int) -> None:
        slot_engine(make_causal_lm(), slots=slots).run([])
        generate_engine(make_causal_lm()).run([])


class TestFaults:
    @pytest.mark.parametrize("in_future", [False, True])
    def test_a_session_that_raises_is_named_and_leaves_nothing_behind(self, in_future: bool) -> None:
        model = make_causal_lm().train()
        started = threading.Event()

        class Broken(ScriptedSession):
            def finish_turn(self, *turn: Any) -> Any:
                if not in_future:
                    raise InfrastructureError("no search server")
                failed: Future[None] = Future()
                failed.set_exception(InfrastructureError("no search server"))
                return failed

        with ThreadPoolExecutor(1) as executor:
            gate = threading.Event()
            executor.submit(lambda: (started.set(), gate.wait(20)))
            assert started.wait(20)
            queued = [LateSession(executor, gate, prompt=[9], script=[[10]]) for _ in range(2)]
            with pytest.raises(InfrastructureError, match="no search server") as caught:
                slot_engine(model, slots=3).run([*queued, Broken([11, 12], [])])
            assert any("session 2" in note for note in caught.value.__notes__)
            gate.set()
        assert model.training
        assert not [thread for thread in threading.enumerate() if thread.name.startswith("ThreadPoolExecutor")]

    def test_an_iterator_that_raises(self) -> None:
        def sessions() -> Iterator[ScriptedSession]:
            yield from make_sessions(3)
            raise InfrastructureError("no more rows")

        with pytest.raises(InfrastructureError, match="no more rows"):
            slot_engine(make_causal_lm(), slots=2).run(sessions())

    @pytest.mark.parametrize("make_engine", [slot_engine, generate_engine])
    def test_max_length(self, make_engine: Any) -> None:
        options = SamplingOptions(max_new_tokens=8, temperature=0)
        engine = make_engine(make_causal_lm(), options, max_length=20)
        cut = ScriptedSession([9] * 6, [[10] * 3, [11]])  # 6 + 8 + 3: room for 3
        full = ScriptedSession([9] * 6, [[10] * 6])  # 6 + 8 + 6: no room
        long = ScriptedSession([9] * 25, [])
        exact = ScriptedSession([9] * 12, [])
        engine.run([cut, full, long, exact])
        assert [len(ids) for ids in cut.tokens] == [8, 3, 0]
        assert [len(ids) for ids in full.tokens] == [8, 0]
        assert [len(ids) for ids in long.tokens] == [0]
        assert [len(ids) for ids in exact.tokens] == [8]
        assert not any(stopped for session in (cut, full, long, exact) for _, _, stopped in session.turns)

    @pytest.mark.parametrize("make_engine", [slot_engine, generate_engine])
    def test_sessions_that_go_on_without_room_or_begin_empty(self, make_engine: Any) -> None:
        class Endless(ScriptedSession):
            def finish_turn(self, *turn: Any) -> list[int]:
                return [9]

        engine = make_engine(make_causal_lm(), max_length=20)
        with pytest.raises(ConfigurationError, match="max_length=20"):
            engine.run([Endless([9], [])])
        with pytest.raises(ConfigurationError, match="prompt_ids"):
            engine.run([ScriptedSession([], [])])

    def test_models_that_do_not_fit_are_refused(self) -> None:
        model = make_causal_lm()
        with pytest.raises(ConfigurationError, match="max_position_embeddings=512"):
            slot_engine(model, slots=2, max_length=513)
        with pytest.raises(ConfigurationError, match="slots"):
            slot_engine(model, slots=0, max_length=5)
        model.config.layer_types, model.config.sliding_window = ["full_attention", "sliding_attention"], 16
        with pytest.raises(ConfigurationError, match="window of 16"):
            slot_engine(model, slots=2)
        model.config._attn_implementation = "flash_attention_2"
        with pytest.raises(ConfigurationError, match="flash_attention_2"):
            slot_engine(model, slots=2)

    def test_sharded_weights_are_refused(self) -> None:
        model = make_causal_lm()
        engine = slot_engine(model, slots=2)
        model.lm_head.weight.data = torch.empty(0)
        with pytest.raises(ConfigurationError, match="sharded"):
            engine.run(make_sessions(1))
