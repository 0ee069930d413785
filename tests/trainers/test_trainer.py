"""AgentTrainer: exactness against TRL, invariances of the gradient, dropped rollouts, resume, learning."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch.testing import assert_close
from transformers import Qwen3ForCausalLM
from trl import GRPOTrainer

from agent_r1_gym.errors import ConfigurationError
from agent_r1_gym.run.record import Tokens, Trajectory
from tests.kit.models import make_model, make_tokenizer
from tests.kit.samples import samples
from tests.kit.small_runs import (
    by_row,
    give,
    gradients,
    learns,
    long_and_short_batch,
    make_args,
    make_rows,
    make_trainer,
    make_trajectory,
    multi_turn_batch,
    one_turn_batch,
    play,
    run,
    score,
)
from trainers.algorithms.batch import tokens_of

LOSSES = ("grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo", "luspo", "vespo")
PAPERS = ("grpo", "rloo", "reinforce++", "reinforce++-baseline", "ppo")

pytestmark = [
    pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning"),
    pytest.mark.usefixtures("one_thread"),
]


def trl_twin(folder: Path, trajectories: Sequence[Trajectory], **settings: Any) -> GRPOTrainer:
    def roll_out(prompts: list[Any], trainer: Any) -> dict[str, Any]:
        return {
            "prompt_ids": [list(tokens_of(t).prompt_ids) for t in trajectories],
            "completion_ids": [list(tokens_of(t).completion_ids) for t in trajectories],
            "env_mask": [list(tokens_of(t).loss_mask) for t in trajectories],
            "logprobs": None,
        }

    return GRPOTrainer(
        make_model(),
        reward_funcs=lambda completions, **_: [t.episode_return for t in trajectories],
        args=make_args(folder, **({"scale_rewards": "group"} | settings)),
        train_dataset=make_rows(),
        processing_class=make_tokenizer(),
        rollout_func=roll_out,
    )


def assert_same_update(ours: tuple[float, dict[str, Any]], theirs: tuple[float, dict[str, Any]]) -> None:
    assert ours[0] == pytest.approx(theirs[0], rel=1e-5, abs=1e-7)
    assert_close(ours[1], theirs[1], rtol=1e-4, atol=3e-7)  # float32: one ulp of a sum is 1.2e-7 on some CPUs


def ends_at_trls_weights(folder: Path, batch: list[Trajectory], *, update_layout: str, **settings: Any) -> None:
    descent = {"learning_rate": 1.0, "optim": "sgd", "max_completion_length": 64, **settings}
    twin = trl_twin(folder, batch, **descent)
    trainer = make_trainer(folder, give(batch), **descent, update_layout=update_layout)
    before = make_model().state_dict()
    for each in (twin, trainer):
        each.train()
    after = trainer.model.state_dict()
    assert_close(after, twin.model.state_dict(), rtol=0, atol=1e-6)
    assert not torch.allclose(after["model.norm.weight"], before["model.norm.weight"], rtol=0, atol=1e-4)


class TestEqualsTRL:
    @samples(
        "settings", [*({"loss_type": name} for name in LOSSES), {"scale_rewards": "batch"}, {"scale_rewards": "none"}]
    )
    @pytest.mark.slow
    def test_one_turn_gives_trls_loss_and_gradients(self, tmp_path: Path, settings: dict[str, Any]) -> None:
        settings["logprob_check_steps"] = 0
        twin = trl_twin(tmp_path, one_turn_batch(), **settings)
        trainer, output = run(tmp_path, one_turn_batch(), **settings)
        assert_same_update(gradients(trainer, output), gradients(twin, score(twin)))

    @pytest.mark.parametrize("layout", ["packed", "rows"])
    @samples("batch", [one_turn_batch, multi_turn_batch, long_and_short_batch])
    @pytest.mark.slow
    def test_one_step_of_training_ends_at_trls_weights(self, tmp_path: Path, batch: Any, layout: str) -> None:
        """By plain gradient descent at rate 1, so that weights are compared as gradients are: to 1e-6.

        With tool tokens between turns and after the last one, and with rollouts of 1 to 57 tokens.
        """
        ends_at_trls_weights(tmp_path, batch(), update_layout=layout)

    @pytest.mark.parametrize("layout", ["packed", "rows"])
    @samples("loss_type", ["grpo", "dapo", "cispo", "dr_grpo"])
    @pytest.mark.slow
    def test_so_does_one_in_micro_batches(self, tmp_path: Path, loss_type: str, layout: str) -> None:
        """Of those that TRL shuffles, each holds what comes; ours hold like rollouts together."""
        micro = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 4, "loss_type": loss_type}
        ends_at_trls_weights(tmp_path, long_and_short_batch(), **micro, update_layout=layout)


class TestGradientSeesOnlySampledTokens:
    @pytest.mark.slow
    @samples("algorithm", [*PAPERS, "steppo", "turn_group", "gigpo", "gagpo", "mt_grpo"])
    def test_advantages_of_environment_tokens_do_not_matter(self, tmp_path: Path, algorithm: str) -> None:
        trainer, output = run(tmp_path, multi_turn_batch(), algorithm=algorithm)
        elsewhere = output["completion_mask"] * output["tool_mask"] == 0
        assert torch.all(output["advantages"][elsewhere] == 0)
        assert torch.any(output["advantages"] != 0)
        expected = gradients(trainer, output)
        changed = output | {"advantages": torch.where(elsewhere, 1e3, output["advantages"])}
        assert_same_update(gradients(trainer, changed), expected)

    def test_labels_of_environment_tokens_do_not_matter(self, tmp_path: Path) -> None:
        trainer, output = run(tmp_path, multi_turn_batch(), loss_type="dapo")
        expected = gradients(trainer, output)
        environment = (output["completion_mask"] == 1) & (output["tool_mask"] == 0)
        assert environment.any()
        logps_of = trainer._get_per_token_logps_and_entropies

        def with_other_labels(*args: Any, **kwargs: Any) -> Any:
            logps, *rest = logps_of(*args, **kwargs)
            return torch.where(environment, logps * 3 - 5, logps), *rest

        trainer._get_per_token_logps_and_entropies = with_other_labels
        assert_same_update(gradients(trainer, output), expected)

    def test_padding_does_not_matter(self, tmp_path: Path) -> None:
        expected = gradients(*run(tmp_path, multi_turn_batch()))
        trainer, output = run(tmp_path, multi_turn_batch(), pad_to_multiple_of=32)
        assert output["completion_ids"].size(1) == 32
        assert_same_update(gradients(trainer, output), expected)

    @pytest.mark.slow
    @samples("algorithm", PAPERS)
    def test_order_of_the_batch_does_not_matter(self, tmp_path: Path, algorithm: str) -> None:
        batch = multi_turn_batch()
        turned = [batch[index] for index in (5, 7, 4, 6, 3, 0, 1, 2)]
        expected = gradients(*run(tmp_path, batch, algorithm=algorithm))
        assert_same_update(gradients(*run(tmp_path, turned, algorithm=algorithm)), expected)


class TestCredit:
    @pytest.mark.slow
    def test_tail_of_tool_text_keeps_its_reward(self, tmp_path: Path) -> None:
        """Agent-R1 lost the reward of such a trajectory and gave two of equal reward +0.707 and -0.707."""
        tail = make_trajectory([2, 5], [([12, 8, 3], 1.0, [2, 7, 13, 13])])
        equal = make_trajectory([2, 5], [([12, 8, 3], 0.0, [2, 7]), ([14, 8, 3], 1.0, [])])
        for algorithm in ("grpo", "rloo", "reinforce++", "reinforce++-baseline"):
            _, output = run(tmp_path, [tail, equal], algorithm=algorithm)
            assert torch.all(output["advantages"] == 0), algorithm
        _, output = run(tmp_path, [tail, make_trajectory([2, 5], [([14, 3], 0.0, [])])], algorithm="rloo")
        assert output["advantages"].tolist() == [[1, 1, 1, 0, 0, 0, 0], [-1, -1, 0, 0, 0, 0, 0]]

    def test_dropped_rollout_leaves_its_group_and_the_gradient(self, tmp_path: Path) -> None:
        batch = multi_turn_batch()
        one, other = list(batch), list(batch)
        one[1] = make_trajectory([2, 5, 11, 8], [([9, 9, 9, 9, 9], 50.0, [7])], error="retriever: timeout")
        other[1] = make_trajectory([], [], error="retriever: refused")
        trainer, output = run(tmp_path, one, algorithm="rloo")
        assert output["tool_mask"][1, :6].tolist() == [0] * 6
        returns = torch.tensor([1.1, 0.1, 0.5])
        expected = returns - (returns.sum() - returns) / 2
        assert_close(output["advantages"][[0, 2, 3], 0], expected)
        assert_same_update(gradients(*run(tmp_path, other, algorithm="rloo")), gradients(trainer, output))
        assert trainer._metrics["train"]["rollout/infra_failures"] == [1 / 8]
        assert trainer._metrics["train"]["rollout/turns"] == [(2 + 2 + 1 + 3 + 1 + 1 + 2) / 7]
        assert trainer._metrics["train"]["reward"] == [pytest.approx((1.1 + 0.1 + 0.5 + 1.0 + 0.3 + 0 + 0.7) / 7)]

    @pytest.mark.slow
    @samples("loss_type", ["grpo", "sapo", "luspo", "dr_grpo", "dapo"])
    def test_dropped_rollout_is_in_no_mean_over_rollouts(self, tmp_path: Path, loss_type: str) -> None:
        """TRL alone divides by all eight; the update must be that of the other seven, KL included."""
        batch = multi_turn_batch()
        batch[1] = make_trajectory([], [], error="dead")
        trainer, output = run(tmp_path, batch, loss_type=loss_type, beta=0.1)
        output["ref_per_token_logps"] -= 1.0
        seven = {key: value[[0, 2, 3, 4, 5, 6, 7]] if value.dim() else value for key, value in output.items()}
        seven.pop("valid_fraction", None)
        assert_same_update(gradients(trainer, output), gradients(trainer, seven))

    @pytest.mark.slow
    @samples(
        ("algorithm", "expected"),
        [
            *((name, 0.75 / 0.5001) for name in ("grpo", "dapo", "gspo", "cispo", "gagpo", "mt_grpo")),
            *((name, 1.0) for name in ("rloo", "turn_group")),
            ("dr_grpo", 0.75),
            ("gigpo", 2 * 0.75 / 0.5001),
        ],
    )
    def test_returns_are_scaled_as_in_the_paper_of_each_preset(
        self, tmp_path: Path, algorithm: str, expected: float
    ) -> None:
        """One rollout of four earns 1: 3/4 above the mean, 1 above the others' mean, deviation 1/2."""
        batch = [make_trajectory([2, 5], [([12, 3], won, [])], outcomes=[won]) for won in (1.0, 0.0, 0.0, 0.0)]
        _, output = run(tmp_path, batch, algorithm=algorithm)
        assert output["advantages"][0, 0].item() == pytest.approx(expected, rel=1e-5)

    def test_loss_and_advantage_mask_can_be_taken_off(self, tmp_path: Path) -> None:
        batch, environment = multi_turn_batch(), torch.arange(9) // 3 == 1
        _, masked = run(tmp_path, batch, algorithm="rloo", advantage_mask=False)
        assert torch.all(masked["advantages"][0, :9][environment] != 0)
        assert masked["tool_mask"][0, :9][environment].tolist() == [0, 0, 0]
        _, bare = run(tmp_path, batch, algorithm="rloo", advantage_mask=False, loss_mask=False)
        assert bare["tool_mask"][0, :9].tolist() == [1] * 9
        assert bare["num_items_in_batch"] == bare["completion_mask"].sum()
        trainer, output = run(tmp_path, batch, loss_mask=False)
        assert torch.all(output["advantages"][0, :9][environment] == output["advantages"][0, 0])
        _, expected = gradients(trainer, output)  # of the environment's text too
        _, found = gradients(trainer, output | {"advantages": output["advantages"] * masked["tool_mask"]})
        assert not torch.allclose(found["model.norm.weight"], expected["model.norm.weight"], rtol=0.1)

    def test_tokens_that_were_not_sampled_are_not_corrected(self, tmp_path: Path) -> None:
        engine = {"engine": "vllm", "backend": Mock(), "vllm_importance_sampling_mode": "token_truncate"}
        _, output = run(tmp_path, multi_turn_batch(), loss_mask=False, **engine)
        ratio, environment = output["importance_sampling_ratio"][0, :9], torch.arange(9) // 3 == 1
        assert torch.all(ratio[environment] == 1)
        assert torch.all(ratio[~environment] != 1)

    def test_truncated_rollouts_can_be_left_out_of_the_loss(self, tmp_path: Path) -> None:
        trainer, output = run(tmp_path, multi_turn_batch(), algorithm="rloo", mask_truncated_completions=True)
        counts = (output["tool_mask"] * output["completion_mask"]).sum(1).tolist()
        assert counts == [6, 3, 5, 0, 7, 3, 3, 4]
        assert output["completion_mask"][3].sum() == 3
        logged = [trainer._metrics["train"][f"completions/{name}_length"] for name in ("mean", "min", "max")]
        assert logged == [[34 / 8], [3], [7]]  # what was sampled
        _, kept = run(tmp_path, multi_turn_batch(), algorithm="rloo")
        assert_close(output["advantages"], kept["advantages"])

    def test_kl_in_the_reward_is_taken_off_the_returns_and_not_in_the_loss(self, tmp_path: Path) -> None:
        settings = {"kl_placement": "reward", "beta": 0.5, "lora": True, "use_bias_correction_kl": False}
        trainer, output = run(tmp_path, multi_turn_batch(), algorithm="rloo", **settings)
        sampled = output["completion_mask"] * output["tool_mask"]
        assert trainer._metrics["train"]["kl"] == [0.0]  # the policy is the reference, whatever the engine said
        with torch.no_grad():
            for name, weight in trainer.model.named_parameters():
                if "lora_B" in name:
                    weight.fill_(0.05)
        output = score(trainer)
        logps = trainer._policy_logps(output)
        assert logps is not None
        kl = ((logps - output["ref_per_token_logps"]) * sampled).sum(1)
        assert torch.all(kl != 0)
        returns = torch.tensor([1.1, 0.0, 0.1, 0.5, 1.0, 0.3, 0.0, 0.7]) - 0.5 * kl
        groups = returns.view(2, 4)
        expected = (groups - (groups.sum(1, keepdim=True) - groups) / 3).flatten()
        assert_close(output["advantages"][:, 0], expected, rtol=1e-4, atol=1e-5)
        assert trainer._metrics["train"]["kl"][1] == pytest.approx((kl.sum() / sampled.sum()).item(), rel=1e-4)
        loss, _ = gradients(trainer, output)
        without = {key: value for key, value in output.items() if key != "ref_per_token_logps"}
        assert gradients(trainer, without)[0] == loss

    @pytest.mark.parametrize(
        ("turns", "outcomes", "expected"),
        [
            ([([12, 3], -0.5, [7]), ([12, 3], -1.5 + 1.0, [])], [0.0, 1.0], 1.0 - 2.0 / 2.0),
            ([([12, 3], 5.0, [])], [5.0], 5.0),
        ],
        ids=["apart from the outcome", "not where all is outcome"],
    )
    def test_process_rewards_are_normalised(
        self, tmp_path: Path, turns: Any, outcomes: list[float], expected: float
    ) -> None:
        pair = [make_trajectory([2, 5], turns, outcomes=outcomes), make_trajectory([2, 5], [([14, 3], 0.0, [])])]
        _, output = run(tmp_path, pair, normalise_process_rewards=True, algorithm="rloo")
        assert_close(output["advantages"][0, 0].item(), expected, rtol=0, atol=1e-5)


class TestFaults:
    @pytest.mark.parametrize(
        ("turns", "words"),
        [
            ([], r"Trajectory 2 of the batch holds no token .* max_completion_length"),
            ([([3], 0.0, [7]), ([3], math.nan, [])], "Trajectory 2 of the batch, turn 1: the reward is nan"),
        ],
    )
    def test_trajectory_that_cannot_be_trained_on(self, tmp_path: Path, turns: Any, words: str) -> None:
        batch = multi_turn_batch()
        batch[2] = make_trajectory([2, 5], turns)
        with pytest.raises(ValueError, match=words):
            run(tmp_path, batch)

    def test_too_few_trajectories(self, tmp_path: Path) -> None:
        trainer = make_trainer(tmp_path, give(multi_turn_batch()[:7]))
        with pytest.raises(ValueError, match="each of the 8 rows, got 7"):
            score(trainer)

    @pytest.mark.parametrize(
        ("settings", "words"),
        [
            ({"lam": 0.95}, r"lam=0\.95 has no effect on grpo, only on gagpo, ppo, steppo\. Leave it at 1\.0\."),
            ({"per_device_train_batch_size": 64}, "has 12 rows, but one generation batch takes 16 prompts"),
        ],
    )
    def test_options_that_do_not_fit(self, tmp_path: Path, settings: dict[str, Any], words: str) -> None:
        with pytest.raises(ConfigurationError, match=words):
            make_trainer(tmp_path, play, **settings)

    @pytest.mark.slow
    def test_engine_whose_log_probs_are_of_another_model_is_refused_at_its_first_batch(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigurationError, match=r"differ from the trainer's by \d\.\d\d nats .*learned positions"):
            run(tmp_path, multi_turn_batch(), alarm_drift_above=0.5)
        trainer = make_trainer(tmp_path, play, alarm_drift_above=0.5, max_steps=1)
        trainer.train()
        run(tmp_path, multi_turn_batch(), alarm_drift_above=0.5, logprob_check_steps=0)

    def test_sampling_from_a_truncated_distribution_is_warned_of(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        make_trainer(tmp_path, play)
        assert "truncated" not in caplog.text
        make_trainer(tmp_path, play, top_p=0.9)
        assert "top_p=0.9, top_k=0: rollouts are sampled from a truncated distribution" in caplog.text

    def test_whole_batch_dropped_changes_nothing_and_warns_in_the_metrics(self, tmp_path: Path) -> None:
        settings = {"algorithm": "rloo", "kl_placement": "reward", "beta": 0.5}
        trainer, output = run(tmp_path, [make_trajectory([], [], error="dead")] * 8, **settings)
        logged = trainer._metrics["train"]
        assert logged["rollout/infra_failures"] == [1.0]
        assert not [name for name in logged if name == "kl" or "drift" in name]  # 0 would be a measurement
        loss, found = gradients(trainer, output)
        assert loss == 0
        assert all(torch.all(gradient == 0) for gradient in found.values())


class TestReference:
    """Of full weights: TRL would load it from the configuration's path."""

    @pytest.mark.slow
    def test_is_the_model_that_was_given_and_not_what_its_path_holds(self, tmp_path: Path) -> None:
        make_model().save_pretrained(tmp_path / "saved")
        model = Qwen3ForCausalLM.from_pretrained(tmp_path / "saved")
        with torch.no_grad():
            model.model.embed_tokens.weight.mul_(2.0)
        settings = {"beta": 0.1, "num_iterations": 2, "learning_rate": 1e-2}
        trainer = make_trainer(tmp_path, give(multi_turn_batch()), model=model, **settings)
        output = score(trainer)
        sampled = (output["completion_mask"] * output["tool_mask"]).bool()
        assert_close(output["ref_per_token_logps"][sampled], output["old_per_token_logps"][sampled])
        before = trainer.ref_model.state_dict()["model.norm.weight"].clone()
        trainer.train()
        assert_close(trainer.ref_model.state_dict()["model.norm.weight"], before, rtol=0, atol=0)
        assert not torch.equal(trainer.model.state_dict()["model.norm.weight"], before)


class TestLogProbsThatNobodyReports:
    def unreported(self) -> list[Trajectory]:
        def forget(tokens: Tokens) -> Tokens:
            return replace(tokens, logprobs=tuple(None if p is None else math.nan for p in tokens.logprobs))

        return [replace(record, tokens=forget(tokens_of(record))) for record in multi_turn_batch()]

    def test_are_refused_from_the_engine_that_always_does(self, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match="Trajectory 0 of the batch has a log-probability that is NaN"):
            run(tmp_path, self.unreported())

    def test_are_left_out_of_trls_batch(self, tmp_path: Path) -> None:
        trainer, output = run(tmp_path, self.unreported(), engine="trl", logprob_check_steps=1)
        assert "sampling_per_token_logps" not in output
        assert not [name for name in trainer._metrics["train"] if "drift" in name]
        expected = gradients(*run(tmp_path, multi_turn_batch()))
        assert_same_update(gradients(trainer, output), expected)

    def test_are_computed_where_kl_in_the_reward_needs_them(self, tmp_path: Path) -> None:
        settings = {"algorithm": "rloo", "kl_placement": "reward", "beta": 0.5}
        trainer, output = run(tmp_path, self.unreported(), engine="trl", **settings)
        assert trainer._metrics["train"]["kl"] == [pytest.approx(0.0, abs=1e-6)]
        _, without = run(tmp_path, multi_turn_batch(), algorithm="rloo")
        assert_close(output["advantages"], without["advantages"], rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_micro_batches_without_a_token_in_the_loss_are_in_no_mean(tmp_path: Path) -> None:
    """The longest rollouts, which a budget cut, are together in one."""
    batch = [make_trajectory([2, 5], [([12, 8 + number, 3], float(number % 2), [])]) for number in range(4)]
    batch += [make_trajectory([2, 5], [([14] * 9, 0.0, [])], truncated=True)] * 4
    logged = []
    for size in (8, 4):
        sizes = {"per_device_train_batch_size": size, "gradient_accumulation_steps": 8 // size}
        settings = {"algorithm": "dapo", "refill_groups": 0, "update_layout": "rows", "learning_rate": 0.0, **sizes}
        trainer = make_trainer(tmp_path, give(batch), **settings, beta=0.1, logging_steps=1)
        trainer.train()
        logged.append([trainer.state.log_history[0][name] for name in ("entropy", "kl", "clip_ratio/region_mean")])
    assert logged[0][0] > 0.1
    assert logged[1] == pytest.approx(logged[0], rel=1e-4)


def test_one_process_saves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer, chat = make_trainer(tmp_path, play), Mock()
    trainer.chat = chat
    for number, saves in enumerate((False, True)):
        monkeypatch.setattr(type(trainer.args), "should_save", saves)
        trainer._save(str(tmp_path / str(number)))
        assert chat.save.called is saves  # not the weights: transformers 5.18 writes them on every rank


def test_scored_log_probs_are_of_a_model_without_dropout(tmp_path: Path) -> None:
    """Else the KL from a reference that equals the policy would be above 0."""
    model = make_model()
    for layer in model.model.layers:
        layer.self_attn.attention_dropout = 0.5
    trainer, _ = run(tmp_path, multi_turn_batch(), model=model, algorithm="rloo", kl_placement="reward", beta=0.5)
    assert trainer._metrics["train"]["kl"] == [pytest.approx(0.0, abs=1e-6)]
    assert trainer.model.training


@pytest.mark.slow
def test_critic_keeps_its_learning_rate_under_the_policys_schedule(tmp_path: Path) -> None:
    settings = {"algorithm": "ppo", "num_generations": 4, "max_steps": 3, "lr_scheduler_type": "linear"}
    trainer = make_trainer(tmp_path, by_row, learning_rate=1e-3, critic_learning_rate=2e-3, **settings)
    trainer.train()
    assert trainer.critic is not None
    assert [group["lr"] for group in trainer.critic.optimizer.param_groups] == [2e-3]
    assert trainer.optimizer.param_groups[0]["lr"] < 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", PAPERS)
def test_learns_a_bandit(tmp_path: Path, algorithm: str) -> None:
    learns(tmp_path, play, algorithm=algorithm, max_steps=66, logging_steps=11)
