"""Trajectories whose context was rewritten: rows with one return, each scored in its own context."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from agent_r1_gym.errors import InfrastructureError
from agent_r1_gym.run.player import Player
from agent_r1_gym.run.record import Trajectory
from agent_r1_gym.run.token_session import NewContext, TokenLimits
from agent_r1_gym.wrappers import ContextWindow
from tests.kit import models
from tests.kit.models import STOPS, GenerateEngine, ScriptedSession, make_causal_lm
from tests.kit.samples import samples
from tests.kit.small_env import ANSWER, SmallEnv, call
from tests.kit.small_runs import (
    COLOURS,
    gradients,
    learns,
    make_args,
    make_rows,
    make_trajectory,
    multi_turn_batch,
    run,
    score,
    several_contexts,
    teacher_settings,
)
from tests.trainers.rollouts.test_collect import CHAT, EchoEnv, collector, played
from trainers.algorithms.batch import context_ids, tokens_of
from trainers.algorithms.metrics import trajectory_metrics
from trainers.config.presets import ALGORITHMS
from trainers.rollouts.chat_format import ChatFormat
from trainers.rollouts.collect import Collector, RolloutRequest, RolloutResult
from trainers.rollouts.request_engine import RequestEngine, SampledTurn, SamplingOptions, TurnRequest
from trainers.rollouts.slot_engine import SlotEngine
from trainers.toy.model import build_model, build_tokenizer
from trainers.trainer import AgentTrainer

pytestmark = [
    pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning"),
    pytest.mark.usefixtures("one_thread"),
]

TWO_ROWS = make_trajectory([2, 5, 11], [([12, 8, 3], 0.0, [2, 7, 13]), ([14, 3], 1.0, [])], rewritten=[0])
"""Prompt 2 5 11, sampled 12 8 3; then, with nothing before it, the context 2 7 13, sampled 14 3."""


def windowed(env: type[SmallEnv] = SmallEnv, *, max_turns: int = 6) -> Any:
    return ContextWindow(env(system_prompt="", max_turns=max_turns), keep_last=1, placeholder="x")


class TestRows:
    def test_numbers_of_rows(self) -> None:
        numbers = context_ids([tokens_of(TWO_ROWS), tokens_of(multi_turn_batch()[0])], width=10)
        assert numbers is not None
        assert numbers.tolist() == [[0, 0, 0, 1, 1, 1, 1, 1, 1, 1], [0] * 10]
        assert context_ids([tokens_of(record) for record in multi_turn_batch()], width=10) is None

    def test_description_counts_rows_and_not_their_contexts(self) -> None:
        described = trajectory_metrics(TWO_ROWS)
        assert (described["contexts"], described["environment_tokens"]) == (2, 0)


def scripts() -> list[ScriptedSession]:
    """Contexts that share nothing, something or everything with the first one, and several alike."""
    prompt, fresh = [9, 10, 11, 12], NewContext([30, 31, 32, 33, 34])
    return [
        ScriptedSession(prompt, [NewContext([9, 10, 20, 21, 22]), [40], NewContext([9, 10, 20, 23])]),
        ScriptedSession(prompt, [[41, 42], fresh]),
        ScriptedSession(prompt, [fresh, fresh, [43]]),
        ScriptedSession([30, 31], [[44], NewContext([30, 31]), NewContext([9])]),
        ScriptedSession(prompt, [NewContext(prompt), NewContext([*prompt, 50, 51, 52, 53, 54, 55])]),
    ]


class TestEngines:
    @pytest.mark.slow
    @pytest.mark.parametrize("slots", [1, 3, 5])
    def test_a_rewritten_context_is_prefilled_anew(self, slots: int) -> None:
        model = make_causal_lm()
        options = SamplingOptions(max_new_tokens=6, temperature=0.0, stop_token_ids=STOPS)
        kept, reference = scripts(), scripts()
        SlotEngine(model, options, slots=slots, max_length=60).run(kept)
        GenerateEngine(model, options, max_length=60).run(reference)
        assert [session.tokens for session in kept] == [session.tokens for session in reference]
        for session, other in zip(kept, reference, strict=True):
            assert session.logprobs == pytest.approx(other.logprobs, abs=1e-4)

    def test_what_both_contexts_begin_with_is_kept(self) -> None:
        assert NewContext([1, 2, 3]).common_prefix_length([1, 2, 4]) == 2
        assert NewContext([1, 2, 3]).common_prefix_length([1, 2, 3, 4]) == 2
        assert NewContext([1]).common_prefix_length([1]) == 0
        with pytest.raises(ValueError, match="at least one token"):
            NewContext([])


class FreshEnv(EchoEnv):
    """Somebody else's: every observation is a prompt of its own, for `turns` turns."""

    def __init__(self, turns: int = 3) -> None:
        super().__init__(turns=turns, says="who {turn}")

    def step(self, action: str) -> tuple[str, Any, bool, bool, dict[str, Any]]:
        *rest, _ = super().step(action)
        return *rest, {"context_rewritten": True}


def texts_of(trajectory: Trajectory) -> list[str]:
    tokens = tokens_of(trajectory)
    cuts = [0, *tokens.context_starts, len(tokens.completion_ids)]
    first, *others = (tokens.completion_ids[start:end] for start, end in pairwise(cuts))
    return [CHAT.tokenizer.decode(ids) for ids in (tokens.prompt_ids + first, *others)]


class TestSession:
    def test_window_begins_a_row_where_seen_text_changes(self) -> None:
        found = played(call("aa bb"), call("cc dd"), ANSWER, env=windowed)
        first, second = texts_of(found)
        assert "echo aa bb" in first
        assert first.endswith('cc dd"}}</tool_call><|im_end|>')
        assert "echo aa bb" not in second
        assert "<|im_start|>tool\nx<|im_end|>" in second
        assert second.startswith("<|im_start|>user\nSay 0.")
        assert second.endswith("<|im_start|>assistant\n<answer>1</answer><|im_end|>")
        assert "echo cc dd" in second
        assert len(found.turns) == 3

    def test_fresh_observations_are_prompts_of_their_own(self) -> None:
        found = played("yes", "no", "yes", env=FreshEnv)
        prompt = "<|im_start|>user\n{}<|im_end|><|im_start|>assistant\n{}<|im_end|>"
        assert texts_of(found) == [
            prompt.format(who, word) for who, word in (("who", "yes"), ("who 1", "no"), ("who 2", "yes"))
        ]
        assert [turn.reward for turn in found.turns] == [0.5] * 3
        assert found.terminated

    def test_budget_counts_the_context_as_it_is(self) -> None:
        limits = TokenLimits(max_prompt_tokens=1024, max_completion_tokens=12)
        found = played(*["yes"] * 9, env=lambda: FreshEnv(9), limits=limits)
        assert found.terminated
        assert len(tokens_of(found).completion_ids) > 12
        longer = played(*["yes " * 20] * 9, env=lambda: FreshEnv(9), limits=limits)
        assert longer.terminated

    def test_a_context_that_is_too_long_truncates(self) -> None:
        limits = TokenLimits(max_prompt_tokens=1024, max_completion_tokens=12)

        class Growing(FreshEnv):
            def step(self, action: str) -> tuple[str, Any, bool, bool, dict[str, Any]]:
                _, *rest = super().step(action)
                return "who " * 3 * self.turns, *rest

        found = played("yes", "no", "yes", env=Growing, limits=limits)
        assert found.truncated
        assert len(found.turns) == 2

    def test_endless_rewriting_is_truncated(self) -> None:
        limits = TokenLimits(max_prompt_tokens=1024, max_completion_tokens=64, max_contexts=5)
        found = played(*["yes"] * 100, env=lambda: FreshEnv(10**9), limits=limits)
        assert found.truncated
        assert len(tokens_of(found).context_starts) == 4
        assert len(found.turns) == 5

    def test_a_backend_that_is_gone_between_two_contexts_loses_the_episode(self) -> None:
        class Gone:
            """Answers one turn."""

            def __init__(self) -> None:
                said = [*CHAT.tokenizer("yes", add_special_tokens=False)["input_ids"], CHAT.stop_id]
                self.turns: list[Future[SampledTurn]] = [Future(), Future()]
                self.turns[0].set_result(SampledTurn(said, [-0.5] * len(said)))
                self.turns[1].set_exception(InfrastructureError("gone"))

            def submit(self, _request: TurnRequest) -> Future[SampledTurn]:
                return self.turns.pop(0)

            def step(self) -> bool:
                return False

            def abort_all(self) -> None:
                pass

        options = SamplingOptions(max_new_tokens=6, stop_token_ids=CHAT.stop_ids)
        engine = RequestEngine(Gone(), options, slots=1, max_length=1024)
        (found,) = collector(FreshEnv, retries=0).collect([{"seed": 1}], engine)
        assert found.infrastructure_error == "gone"
        assert (len(found.turns), tokens_of(found).context_starts) == (1, ())

    def test_a_row_without_a_turn_is_left_out(self) -> None:
        found = played("yes", env=FreshEnv)  # the script ends before the episode does, as a full context would
        assert found.truncated
        assert tokens_of(found).context_starts == ()
        assert len(tokens_of(found).completion_ids) == tokens_of(found).spans[-1][1]


def logps_by_hand(model: Any, trajectory: Trajectory) -> Tensor:
    """(n,) log-probs with gradient of the sampled tokens, row by row."""
    tokens, found = tokens_of(trajectory), []
    for start, end in pairwise([0, *tokens.context_starts, len(tokens.completion_ids)]):
        prompt = [] if start else list(tokens.prompt_ids)
        ids = [*prompt, *tokens.completion_ids[start:end]]
        mask = [0] * len(prompt) + list(tokens.loss_mask[start:end])
        logps = model(input_ids=torch.tensor([ids])).logits[0, :-1].log_softmax(-1)
        chosen = torch.tensor(mask[1:]).bool()
        found.append(logps.gather(1, torch.tensor(ids[1:])[:, None])[chosen, 0])
    return torch.cat(found)


class TestTrainer:
    def test_both_rows_get_the_advantage_of_the_one_return(self, tmp_path: Path) -> None:
        _, output = run(tmp_path, several_contexts(), algorithm="rloo")
        returns = torch.tensor([1.0, 0.2, 0.5, 0.1])
        expected = returns - (returns.sum() - returns) / 3
        sampled = torch.tensor([1, 1, 1, 0, 0, 0, 1, 1]).bool()
        assert_close(output["advantages"][0, :8][sampled], expected[0].expand(5))
        assert torch.all(output["advantages"][0, :8][~sampled] == 0)
        assert_close(output["advantages"].amax(1) + output["advantages"].amin(1), expected, rtol=1e-4, atol=1e-5)
        assert output["num_items_in_batch"] == 5 + 8 + 5 + 2

    @pytest.mark.parametrize("loss_type", ["dapo", "grpo", "bnpo", "dr_grpo"])
    @samples("padding", [None, 16])
    def test_loss_and_gradient_are_those_of_the_rows(self, tmp_path: Path, loss_type: str, padding: int | None) -> None:
        """Worked by hand: a trajectory has one share in a mean over rollouts, however many rows it has."""
        trainer, output = run(
            tmp_path, several_contexts(), algorithm="rloo", loss_type=loss_type, pad_to_multiple_of=padding
        )
        _, found = gradients(trainer, output)
        trainer.model.zero_grad()
        returns = torch.tensor([1.0, 0.2, 0.5, 0.1])
        advantages = returns - (returns.sum() - returns) / 3
        sums = [logps_by_hand(trainer.model, t).sum() for t in several_contexts()]
        counts = [5, 8, 5, 2]
        weights = {
            "dapo": [1 / 20] * 4,
            "bnpo": [1 / 20] * 4,
            "grpo": [1 / (4 * count) for count in counts],
            "dr_grpo": [1 / (4 * 32)] * 4,
        }[loss_type]
        loss = -sum(w * a * s for w, a, s in zip(weights, advantages, sums, strict=True))
        loss.backward()
        expected = {name: p.grad for name, p in trainer.model.named_parameters()}
        assert_close(found, expected, rtol=1e-4, atol=1e-6)

    def test_old_and_reference_log_probs_are_those_of_the_rows(self, tmp_path: Path) -> None:
        trainer, output = run(tmp_path, several_contexts(), algorithm="rloo", num_iterations=2, beta=0.1)
        sampled = (output["completion_mask"] * output["tool_mask"]).bool()
        expected = torch.cat([logps_by_hand(trainer.model, t) for t in several_contexts()])
        for key in ("old_per_token_logps", "ref_per_token_logps"):
            assert_close(output[key][sampled], expected.detach(), rtol=0, atol=1e-5)

    @pytest.mark.parametrize("padding", [None, 16])
    def test_values_are_read_in_the_row(self, tmp_path: Path, padding: int | None) -> None:
        trainer, output = run(tmp_path, several_contexts(), algorithm="ppo", pad_to_multiple_of=padding)
        critic = trainer.critic
        assert critic is not None
        with torch.no_grad():
            critic.model.score.weight.normal_()
        ids = torch.cat([output["prompt_ids"], output["completion_ids"]], 1)
        mask = torch.cat([output["prompt_mask"], output["completion_mask"]], 1)
        width = output["completion_ids"].size(1)
        values = critic.values(ids, mask, length=width, context_ids=output["context_ids"])
        with torch.no_grad():
            first = critic.model(input_ids=torch.tensor([[2, 5, 11, 12, 8, 3]])).logits[0, :, 0]
            second = critic.model(input_ids=torch.tensor([[2, 7, 13, 14, 3]])).logits[0, :, 0]
        assert_close(values[0, :3], first[2:5], rtol=1e-4, atol=1e-5)
        assert_close(values[0, 6:8], second[2:4], rtol=1e-4, atol=1e-5)

    @pytest.mark.slow
    @samples(
        "algorithm",
        ALGORITHMS,
    )
    def test_every_algorithm_takes_rows(self, tmp_path: Path, algorithm: str) -> None:
        records = [replace(record, gold_answers=("yes",)) for record in several_contexts()]
        trainer, output = run(tmp_path, records, algorithm=algorithm, **teacher_settings(algorithm, tmp_path))
        loss, found = gradients(trainer, output)
        elsewhere = output["completion_mask"] * output["tool_mask"] == 0
        assert torch.all(output["advantages"][elsewhere] == 0)
        assert loss == loss
        assert any(torch.any(gradient != 0) for gradient in found.values())

    def test_rewritten_contexts_are_no_environment_tokens_in_the_ablations(self, tmp_path: Path) -> None:
        _, output = run(tmp_path, several_contexts(), algorithm="rloo", advantage_mask=False, loss_mask=False)
        assert output["tool_mask"][0, :8].tolist() == [1, 1, 1, 0, 0, 0, 1, 1]
        assert torch.all(output["advantages"][0, 3:6] == 0)
        assert output["tool_mask"][2, :8].tolist() == [1] * 8
        assert torch.all(output["advantages"][2, 3:6] != 0)


class TestLongEpisodes:
    """What docs/papers.md names as SUPO and CompactionRL, of episodes whose context was summarised."""

    def test_supo_compares_whole_rollouts_and_masks_those_that_did_not_end(self, tmp_path: Path) -> None:
        """All contexts of a rollout share its advantage; one that a budget cut counts in the group's mean alone."""
        first, second, third, cut = several_contexts()
        cut = replace(cut, terminated=False, truncated=True)
        settings = {"algorithm": "grpo", "mask_truncated_completions": True}
        _, output = run(tmp_path, [first, second, third, cut], **settings)
        returns = torch.tensor([1.0, 0.2, 0.5, 0.1])
        expected = (returns - returns.mean()) / (returns.std() + 1e-4)
        in_loss = (output["completion_mask"] * output["tool_mask"]).bool()
        assert in_loss.sum(1).tolist() == [5, 8, 5, 0]
        for row in range(3):
            mine = output["advantages"][row, in_loss[row]]
            assert_close(mine, expected[row].expand_as(mine), rtol=1e-4, atol=1e-5)

    def test_compaction_rl_estimates_advantages_across_contexts(self, tmp_path: Path) -> None:
        """GAE goes on from the last token of a context to the first that is sampled in the next one."""
        records = several_contexts()
        trainer, output = run(tmp_path, records, algorithm="ppo", beta=0.0, gamma=0.9, lam=0.8)
        generator = torch.Generator().manual_seed(0)
        values = torch.rand(output["advantages"].shape, generator=generator)
        assert trainer.critic is not None
        trainer.critic.values = lambda *_inputs, **_options: values
        fitted: list[Any] = []
        trainer.critic.fit = lambda batch: fitted.append(batch) or {}
        score(trainer, len(records))
        for row, record in enumerate(records):
            following = advantage = 0.0
            for turn, (start, end) in reversed(list(zip(record.turns, tokens_of(record).spans, strict=True))):
                for position in reversed(range(start, end)):
                    last = position == end - 1
                    discount, reward = (0.9, turn.reward) if last else (1.0, 0.0)
                    value = values[row, position].item()
                    advantage = reward + discount * following - value + discount * 0.8 * advantage
                    following = value
                    target = fitted[0].returns[row, position].item()
                    assert target == pytest.approx(advantage + value, abs=1e-5)


@pytest.mark.slow
def test_every_trained_token_has_the_log_prob_it_was_sampled_with(tmp_path: Path) -> None:
    """Through a real engine, under a context window: recorded = replayed by hand = what the loss computes."""
    tokenizer = build_tokenizer()
    model = build_model(tokenizer)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2.0)
    found: list[Trajectory] = []

    class Calling(SmallEnv):
        """Every turn counts as a call, so that a random model fills a window."""

        def begin_step(self, action: str) -> Any:
            return super().begin_step(call("aa bb"))

    def play(request: RolloutRequest) -> RolloutResult:
        options = SamplingOptions(max_new_tokens=5, stop_token_ids=CHAT.stop_ids)
        engine = SlotEngine(request.model, options, slots=3, max_length=1400)
        limits = TokenLimits(max_prompt_tokens=256, max_completion_tokens=1000)
        games = Collector(Player(lambda: windowed(Calling, max_turns=5), chat=CHAT, limits=limits))
        found[:] = games.collect([{"task_index": 0}] * len(request.rows), engine)
        return RolloutResult(request.rows, list(found))

    args = make_args(tmp_path, num_generations=4, logprob_check_steps=1)
    trainer = AgentTrainer(model, args, collect=play, train_dataset=make_rows(), processing_class=tokenizer)
    score(trainer)
    assert [len(tokens_of(trajectory).context_starts) for trajectory in found] == [3] * 8
    trainer.model.eval()
    for trajectory in found:
        recorded = [logprob for logprob in tokens_of(trajectory).logprobs if logprob is not None]
        assert logps_by_hand(model, trajectory).tolist() == pytest.approx(recorded, abs=1e-4)
    assert trainer._metrics["train"]["sampling/logprob_drift_max"][0] < 1e-4
    assert trainer._metrics["train"]["rollout/contexts"] == [4.0]


class ColourEnv(FreshEnv):
    """Asks twice for a colour, each time with nothing else in sight."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[str, dict[str, Any]]:
        self.first = seed or 0
        _, info = super().reset(seed=seed)
        return f"say {self.colour}", info

    @property
    def colour(self) -> str:
        return COLOURS[(self.first + self.turns) % len(COLOURS)]

    def step(self, action: str) -> tuple[str, Any, bool, bool, dict[str, Any]]:
        reward = 0.5 * (action.strip() == self.colour)
        _, _, *rest = super().step(action)
        return f"say {self.colour}", reward, *rest


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["grpo", "ppo"])
def test_learns_a_bandit_whose_context_is_rewritten(tmp_path: Path, algorithm: str) -> None:
    tokenizer = models.make_tokenizer()
    tokenizer.chat_template = models.CHAT_TEMPLATE.replace(" <|im_end|> ", "<|im_end|>")
    games = Collector(
        Player(
            lambda: ColourEnv(turns=2),
            chat=ChatFormat(tokenizer),
            limits=TokenLimits(max_prompt_tokens=32, max_completion_tokens=32),
        )
    )

    def play(request: RolloutRequest) -> RolloutResult:
        options = SamplingOptions(max_new_tokens=1, seed=request.batch)
        engine = SlotEngine(request.model, options, slots=48, max_length=64)
        return RolloutResult(request.rows, games.collect([{"seed": row["target"]} for row in request.rows], engine))

    learns(tmp_path, play, algorithm=algorithm, max_steps=60, logging_steps=10)
