"""On-policy distillation: the teacher's log-ratio, where it goes, and which models may teach."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from agent_r1_gym.errors import ConfigurationError
from agent_r1_gym.run.record import Trajectory
from tests.kit.credit_batches import batch, close
from tests.kit.models import make_model, make_tokenizer
from tests.kit.samples import samples
from tests.kit.small_runs import (
    distributions_of_turns,
    give,
    gradients,
    logps_of_turns,
    make_trainer,
    multi_turn_batch,
    play,
    run,
    score,
    several_contexts,
)
from trainers.algorithms.advantages import ESTIMATORS
from trainers.algorithms.batch import tokens_of
from trainers.algorithms.credit import CreditOptions
from trainers.algorithms.distillation import (
    add_to_advantages,
    check_same_tokenizer,
    distilled_rows,
    distilled_values,
    forward_at_labels,
    forward_kl,
    teacher_log_ratios,
)
from trainers.algorithms.packing import Layout
from trainers.monitoring.memory import MemoryCheck

pytestmark = [
    pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning"),
    pytest.mark.usefixtures("one_thread"),
]
ANSWERS = ("yes", "no", "red", "green", "blue", "say", "call", "tool")
OFF = {"logprob_check_steps": 0, "num_generations": 1}


def with_answers(batch: Sequence[Trajectory]) -> list[Trajectory]:
    return [replace(record, gold_answers=(ANSWERS[number],)) for number, record in enumerate(batch)]


@pytest.fixture
def teacher_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "teacher"
    make_model(seed=1).save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)
    return folder


def ratios_by_hand(
    teacher: Any, policy: Any, records: Sequence[Trajectory], prefixes: Sequence[list[int]]
) -> list[Any]:
    """For each rollout a list of (start, end, d of the turn's tokens)."""
    rows = []
    for record, prefix in zip(records, prefixes, strict=True):
        theirs, ours = logps_of_turns(teacher, record, prefix=prefix), logps_of_turns(policy, record)
        spans = tokens_of(record).spans
        rows.append([(*span, (q - p).detach()) for span, q, p in zip(spans, theirs, ours, strict=True)])
    return rows


class TestRatio:
    def test_by_hand(self) -> None:
        teacher, policy = torch.tensor([[-1.0, -2.0, -3.0]]), torch.tensor([[-2.0, -1.5, 0.0]])
        assert teacher_log_ratios(teacher, policy, torch.tensor([[True, True, False]])).tolist() == [[1.0, -0.5, 0.0]]

    def test_is_added_to_the_advantages_of_credited_tokens(self) -> None:
        credit = ESTIMATORS["grpo"](batch(("0.1", [0.0, 1.0]), ("0", [0.0])), CreditOptions(scale="none"))
        found = add_to_advantages(credit, torch.full((2, 3), 0.5), weight=2.0)
        assert close(found.advantages, [[1.5, 0.0, 1.5], [0.5, 0.0, 0.0]])

    def test_without_rewards_nothing_else_is_left(self) -> None:
        credit = ESTIMATORS["opd"](batch(("0.1", [0.0, 1.0]), ("0", [5.0])), CreditOptions())
        assert not credit.advantages.any()
        assert credit.credited.tolist() == [[True, False, True], [True, False, False]]

    def test_gradient_of_the_mean_is_that_of_the_kl(self) -> None:
        """By enumeration: E[d grad log p] = -grad KL(p || q), over a vocabulary of five."""
        generator = torch.Generator().manual_seed(0)
        logits = torch.randn(5, generator=generator, dtype=torch.float64).requires_grad_()
        teacher = torch.randn(5, generator=generator, dtype=torch.float64).log_softmax(0)
        logps = logits.log_softmax(0)
        (kl,) = torch.autograd.grad((logps.exp() * (logps - teacher)).sum(), logits, retain_graph=True)
        ratios = teacher_log_ratios(teacher, logps.detach(), torch.ones(5, dtype=torch.bool))
        (sampled,) = torch.autograd.grad((logps.exp().detach() * ratios * logps).sum(), logits)
        assert close(sampled, -kl, 1e-12)

    def test_failures_are_wrong_answers_or_where_none_is_scored_no_reward(self) -> None:
        right, wrong = (Trajectory(scores={"em": em}) for em in (1.0, 0.0))
        paid, unpaid = (replace(record, scores={}) for record in (multi_turn_batch()[1], multi_turn_batch()[1]))
        paid = replace(paid, turns=(replace(paid.turns[0], outcome_reward=0.5),))
        records = [right, wrong, paid, unpaid]
        assert distilled_rows(records, failures_only=True).tolist() == [False, True, False, True]
        assert distilled_rows(records, failures_only=False).tolist() == [True] * 4


class TestSelfDistillation:
    @pytest.mark.slow
    @samples("rollouts", [multi_turn_batch, several_contexts])
    def test_gradient_is_that_of_the_formula(self, tmp_path: Path, rollouts: Any) -> None:
        """Minus the mean over tokens of d_t grad log p_t, with d_t from plain passes with and without the answer."""
        records = with_answers(rollouts())
        trainer, output = run(tmp_path, records, algorithm="opsd", teacher_privileged="answer", **OFF)
        found = gradients(trainer, output)
        tokenizer = make_tokenizer()
        texts = trainer.privileged.texts("answer", [{}] * len(records), records)
        prefixes = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]
        assert all(prefixes)
        by_hand = ratios_by_hand(trainer.model, trainer.model, records, prefixes)
        trainer.model.zero_grad()
        parts: list[Tensor] = []
        for row, record in enumerate(records):
            for (start, end, ratio), logps in zip(by_hand[row], logps_of_turns(trainer.model, record), strict=True):
                assert_close(output["advantages"][row, start:end], ratio, rtol=1e-3, atol=1e-5)
                parts.append(-(ratio * logps))
        torch.cat(parts).mean().backward()
        expected = {name: p.grad for name, p in trainer.model.named_parameters() if p.grad is not None}
        assert_close(found[1], expected, rtol=1e-3, atol=1e-5)
        elsewhere = output["completion_mask"] * output["tool_mask"] == 0
        assert not output["advantages"][elsewhere].any()
        kl = trainer._metrics["train"]["distillation/kl"][-1]
        assert kl == pytest.approx(-torch.cat([ratio for row in by_hand for *_, ratio in row]).mean().item(), rel=1e-3)

    def test_no_divergence_is_logged_of_a_batch_that_teaches_nothing(self, tmp_path: Path) -> None:
        records = [replace(record, scores={"em": 1.0}) for record in with_answers(multi_turn_batch())]
        teacher = {"teacher_privileged": "answer", "distillation_failures_only": True}
        trainer, output = run(tmp_path, records, algorithm="opsd", **teacher, **OFF)
        assert not output["advantages"].any()
        assert "distillation/kl" not in trainer._metrics["train"]

    def test_joins_the_advantages_of_another_algorithm(self, tmp_path: Path) -> None:
        records = with_answers(multi_turn_batch())
        settings = {"logprob_check_steps": 0}
        plain = run(tmp_path, records, **settings)[1]["advantages"]
        teacher = {"teacher_privileged": "answer", "distillation_weight": 1.0}
        alone = run(tmp_path, records, algorithm="opd", **teacher, **OFF)[1]["advantages"]
        both = run(tmp_path, records, **teacher | {"distillation_weight": 0.5}, **settings)[1]["advantages"]
        assert_close(both, plain + 0.5 * alone, rtol=1e-4, atol=1e-6)


class TestWholeVocabulary:
    """The forward KL in the loss: what the policy never samples teaches too."""

    def test_by_hand(self) -> None:
        policy, teacher = torch.tensor([[0.5, 0.5], [0.9, 0.1]]), torch.tensor([[0.9, 0.1], [0.9, 0.1]])
        assert_close(forward_kl(policy.log(), teacher.log()), torch.tensor([0.3680642, 0.0]), rtol=1e-6, atol=1e-7)

    def test_gradient_stays_where_the_policy_is_sure(self) -> None:
        """By the logits it is p - q; that of the sampled token's log-ratio vanishes with 1 - p."""
        logits = torch.tensor([[20.0, 0.0, 0.0]], dtype=torch.float64).requires_grad_()
        teacher = torch.tensor([[0.0, 1.0, 0.0]], dtype=torch.float64).log().clamp(min=-30)
        logps = logits.log_softmax(-1)
        (whole,) = torch.autograd.grad(forward_kl(logps, teacher).sum(), logits, retain_graph=True)
        assert close(whole, [[1.0, -1.0, 0.0]], 1e-8)
        ratio = teacher_log_ratios(teacher, logps.detach(), torch.ones(1, 3, dtype=torch.bool))[0, 0]
        (sampled,) = torch.autograd.grad(-(ratio * logps[0, 0]), logits)
        assert sampled.abs().max() < 1e-6

    @pytest.mark.slow
    @samples(
        ("rollouts", "layout"),
        [(multi_turn_batch, "rows"), (multi_turn_batch, "packed"), (several_contexts, "packed")],
    )
    def test_loss_and_gradient_are_those_of_the_formula(self, tmp_path: Path, rollouts: Any, layout: str) -> None:
        """The mean over sampled tokens of KL(q || p), by plain passes with and without the answer, at temperature 1."""
        records = with_answers(rollouts())
        settings = {"teacher_privileged": "answer", "distillation_placement": "loss", "update_layout": layout}
        trainer, output = run(tmp_path, records, algorithm="opsd", distillation_weight=0.5, **settings, **OFF)
        assert not output["advantages"].any()
        found = gradients(trainer, output)
        texts = trainer.privileged.texts("answer", [{}] * len(records), records)
        parts: list[Tensor] = []
        trainer.model.zero_grad()
        for record, text in zip(records, texts, strict=True):
            prefix = make_tokenizer()(text, add_special_tokens=False)["input_ids"]
            with torch.no_grad():
                taught = distributions_of_turns(trainer.model, record, prefix=prefix)
            own = distributions_of_turns(trainer.model, record)
            parts += [(q.exp() * (q - p)).sum(-1) for q, p in zip(taught, own, strict=True)]
        mean = torch.cat(parts).mean()
        (0.5 * mean).backward()
        expected = {name: p.grad for name, p in trainer.model.named_parameters() if p.grad is not None}
        assert found[0] == pytest.approx(0.5 * mean.item(), rel=1e-4)
        assert_close(found[1], expected, rtol=1e-3, atol=1e-5)
        assert trainer._metrics["train"]["distillation/forward_kl"][-1] == pytest.approx(mean.item(), rel=1e-4)
        assert "distillation/kl" not in trainer._metrics["train"]

    @pytest.mark.slow
    def test_joins_the_loss_of_another_algorithm(self, tmp_path: Path, teacher_folder: Path) -> None:
        records, teacher = multi_turn_batch(), {"teacher_model_name_or_path": str(teacher_folder)}
        settings: dict[str, Any] = {"logprob_check_steps": 0, "distillation_placement": "loss", **teacher}
        plain = gradients(*run(tmp_path, records, logprob_check_steps=0))[1]
        alone = gradients(*run(tmp_path, records, algorithm="opd", **settings | OFF))[1]
        both, output = run(tmp_path, records, distillation_weight=0.5, **settings)
        expected = {name: plain[name] + 0.5 * alone[name] for name in plain}
        assert_close(gradients(both, output)[1], expected, rtol=1e-3, atol=1e-5)
        assert output["advantages"].any()

    @pytest.mark.slow
    def test_micro_batches_sum_to_the_mean_of_the_step(self, tmp_path: Path, teacher_folder: Path) -> None:
        """The mean is over the tokens of the step, whatever micro-batch they are in."""
        settings = {"distillation_placement": "loss", "teacher_model_name_or_path": str(teacher_folder), **OFF}
        weights = []
        for rows in (8, 2):
            sizes = {"per_device_train_batch_size": rows, "gradient_accumulation_steps": 8 // rows}
            steps = {"max_steps": 1, "learning_rate": 1e-2, "optim": "sgd", "max_grad_norm": 0.0}
            trainer = make_trainer(
                tmp_path / str(rows), give(multi_turn_batch()), algorithm="opd", **settings | sizes | steps
            )
            trainer.train()
            weights.append({name: value.detach().clone() for name, value in trainer.model.named_parameters()})
        moved = [not torch.equal(weights[0][name], value) for name, value in make_model().named_parameters()]
        assert all(moved)
        assert_close(weights[1], weights[0], rtol=1e-5, atol=1e-7)

    @pytest.mark.slow
    def test_lost_rollouts_and_right_answers_teach_nothing(self, tmp_path: Path, teacher_folder: Path) -> None:
        scored = [replace(record, scores={"em": float(at % 2)}) for at, record in enumerate(multi_turn_batch())]
        scored[0] = replace(scored[0], infrastructure_error="down")
        settings = {"distillation_placement": "loss", "teacher_model_name_or_path": str(teacher_folder), **OFF}
        trainer, output = run(tmp_path, scored, algorithm="opd", distillation_failures_only=True, **settings)
        assert output["distilled"].tolist() == [False, False, True, False, True, False, True, False]
        gradients(trainer, output)
        taught = [
            (q.exp() * (q - p)).sum(-1)
            for number in (2, 4, 6)
            for q, p in zip(
                distributions_of_turns(make_model(seed=1), scored[number]),
                distributions_of_turns(make_model(), scored[number]),
                strict=True,
            )
        ]
        logged = trainer._metrics["train"]["distillation/forward_kl"][-1]
        assert logged == pytest.approx(torch.cat(taught).mean().item(), rel=1e-4)

    def test_the_output_layer_computes_the_wanted_positions_alone(self) -> None:
        model, ids = make_model().eval(), torch.tensor([[2, 5, 11, 8, 12], [2, 5, 9, 3, 3]])
        labels = torch.full_like(ids, -100)
        labels[0, 1], labels[0, 3], labels[1, 2] = 11, 12, 3
        real = torch.ones_like(ids, dtype=torch.bool)
        layout = Layout({"input_ids": ids}, labels, real, tuple(real.nonzero(as_tuple=True)))
        assert layout.predicting().tolist() == [1, 3, 7]
        logits = forward_at_labels(model, layout, head=model.get_output_embeddings()).logits
        whole = model(input_ids=ids).logits
        assert whole.shape[:2] == ids.shape  # the layer is whole again
        assert_close(logits, whole[[0, 0, 1], [1, 3, 2]], rtol=1e-5, atol=1e-6)
        logps, entropies, divergences = distilled_values(logits, logits, layout, temperature=2.0)
        halved = (logits / 2).log_softmax(-1)
        assert_close(logps[labels != -100], halved[range(3), [11, 12, 3]], rtol=1e-5, atol=1e-6)
        assert_close(entropies[labels != -100], -(halved.exp() * halved).sum(-1), rtol=1e-5, atol=1e-6)
        assert divergences.abs().max() < 1e-6
        assert not logps[labels == -100].any()

    def test_what_pads_a_vocabulary_is_left_out(self) -> None:
        logits, ids = torch.randn(2, 5), torch.tensor([[1, 2]])
        layout = Layout({}, ids, torch.ones(1, 3, dtype=torch.bool), (torch.zeros(3).long(), torch.tensor([0, 1, 1])))
        same = distilled_values(logits, logits, layout, temperature=1.0)
        wider = distilled_values(logits, torch.nn.functional.pad(logits, (0, 2), value=9.0), layout, temperature=1.0)
        narrower = distilled_values(torch.nn.functional.pad(logits, (0, 2), value=9.0), logits, layout, temperature=1.0)
        for found in (same, wider, narrower):
            assert found[2].abs().max() < 1e-6

    def test_the_trial_of_the_largest_update_includes_it(self, tmp_path: Path, teacher_folder: Path) -> None:
        settings = {"distillation_placement": "loss", "teacher_model_name_or_path": str(teacher_folder), **OFF}
        trainer = make_trainer(tmp_path, give([]), algorithm="opd", **settings)
        before = {name: value.clone() for name, value in trainer.model.named_parameters()}
        compared: list[Tensor] = []
        trainer.teacher.get_output_embeddings().register_forward_hook(lambda *_: compared.append(_[2]))
        MemoryCheck(trainer).on_train_begin()
        assert sum(map(len, compared)) == 8 * 32  # all tokens of full completions
        assert_close(dict(trainer.model.named_parameters()), before, rtol=0, atol=0)


class TestAnotherModel:
    @pytest.mark.slow
    def test_scores_as_a_plain_pass_of_it(self, tmp_path: Path, teacher_folder: Path) -> None:
        records = multi_turn_batch()
        trainer, output = run(tmp_path, records, algorithm="opd", teacher_model_name_or_path=str(teacher_folder), **OFF)
        by_hand = ratios_by_hand(make_model(seed=1), make_model(), records, [[]] * len(records))
        for row, turns in enumerate(by_hand):
            for start, end, ratio in turns:
                assert_close(output["advantages"][row, start:end], ratio, rtol=1e-3, atol=1e-5)
        assert not any(parameter.requires_grad for parameter in trainer.teacher.parameters())

    @pytest.mark.slow
    def test_the_policy_comes_nearer_to_it(self, tmp_path: Path, teacher_folder: Path) -> None:
        settings = {"per_device_train_batch_size": 24, "max_steps": 16, "learning_rate": 3e-3, "logging_steps": 1}
        settings |= {"num_generations": 8}
        trainer = make_trainer(
            tmp_path, play, algorithm="opd", teacher_model_name_or_path=str(teacher_folder), **OFF | settings
        )
        trainer.train()
        kl = [log["distillation/kl"] for log in trainer.state.log_history if "distillation/kl" in log]
        assert sum(kl[-4:]) < 0.5 * sum(kl[:4])

    def test_with_another_tokenizer_is_refused(self, teacher_folder: Path, tmp_path: Path) -> None:
        tokenizer = make_tokenizer()
        tokenizer.add_tokens(["purple"])
        with pytest.raises(ConfigurationError, match=r"1 of 17 tokens differ, such as 'purple' \(id 17 there, None"):
            check_same_tokenizer("other", tokenizer, make_tokenizer())
        tokenizer.save_pretrained(teacher_folder)
        with pytest.raises(ConfigurationError, match="has another tokenizer than the policy"):
            make_trainer(tmp_path, give([]), algorithm="opd", teacher_model_name_or_path=str(teacher_folder), **OFF)


@pytest.mark.slow
def test_dgpo_pays_the_ratio_to_failures_as_a_reward(tmp_path: Path, teacher_folder: Path) -> None:
    """With a new critic (values 0) and lambda 1, its targets are the returns from each token on."""
    records = [replace(record, scores={"em": float(number % 2)}) for number, record in enumerate(multi_turn_batch())]
    settings = {"algorithm": "dgpo", "distillation_weight": 0.5, **OFF}
    trainer = make_trainer(
        tmp_path,
        give(records),
        teacher_model_name_or_path=str(teacher_folder),
        per_device_train_batch_size=8,
        **settings,
    )
    fitted: list[Any] = []
    trainer.critic.fit = lambda values: fitted.append(values) or {}
    score(trainer)
    by_hand = ratios_by_hand(make_model(seed=1), make_model(), records, [[]] * 8)
    for row, record in enumerate(records):
        rewards = torch.zeros_like(fitted[0].returns[row])
        for (start, end, ratio), turn in zip(by_hand[row], record.turns, strict=True):
            rewards[start:end] = 0.5 * ratio * (1 - row % 2)
            rewards[end - 1] += turn.reward
        sampled = fitted[0].mask[row]
        expected = rewards[sampled].flip(0).cumsum(0).flip(0)
        assert_close(fitted[0].returns[row, sampled], expected, rtol=1e-3, atol=1e-5)
