"""Privileged information: what it says, that only critic and teacher read it, and that nothing else contains it."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.testing import assert_close

from agent_r1_gym.core.types import Passage, Task, Transition
from agent_r1_gym.data.base import Question, SupportingFact
from agent_r1_gym.errors import ConfigurationError
from agent_r1_gym.registry import make_text_env
from agent_r1_gym.run.record import Trajectory
from tests.kit.models import make_model, make_tokenizer
from tests.kit.samples import samples
from tests.kit.small_env import SmallEnv
from tests.kit.small_runs import (
    give,
    logps_of_turns,
    make_args,
    make_trainer,
    multi_turn_batch,
    score,
    several_contexts,
)
from tests.trainers.algorithms.test_critic import make_critic
from tests.trainers.rollouts.test_collect import EchoEnv
from tests.trainers.test_train import config
from trainers.algorithms.batch import tokens_of
from trainers.algorithms.critic import ValueBatch
from trainers.algorithms.packing import Prefixes, rows_layout
from trainers.algorithms.privileged import PrivilegedContext, gold_passages
from trainers.commands.train.building import build_trainer
from trainers.rollouts.collect import RolloutResult
from trainers.toy.model import build_model, build_tokenizer

pytestmark = [
    pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning"),
    pytest.mark.usefixtures("one_thread"),
]

FICTION = functools.partial(
    make_text_env, "AgentR1/FictionQA-v0", {"style": "compact", "entities": 200, "questions": 40}
)


def record(**fields: Any) -> Trajectory:
    return Trajectory(**{"task_id": "t", **fields})


def nothing(_transition: Transition) -> float:
    """A reward that needs no gold answer."""
    return 0.0


def free_env() -> SmallEnv:
    return SmallEnv(tasks=[Task("free", "Do it.")], reward=nothing)


class TestText:
    def test_answer_is_the_first_gold_answer(self) -> None:
        records = [
            record(gold_answers=("Paris", "City of Light")),
            record(infrastructure_error="down"),
            record(gold_answers=("Rome",)),
        ]
        texts = PrivilegedContext().texts("answer", [{}, {}, {}], records)
        assert texts == ["The correct answer is: Paris\n\n", "", "The correct answer is: Rome\n\n"]

    def test_passages_are_the_gold_ones(self) -> None:
        passages = [Passage(str(number), title, f"{title} is.") for number, title in enumerate("ABC")]
        question = Question(
            "q", "?", ("a",), supporting_facts=(SupportingFact("C", 0), SupportingFact("A", 0)), context=tuple(passages)
        )
        assert gold_passages(question) == ["A: A is.", "C: C is."]
        assert gold_passages(Question("q", "?", ("a",), supporting_facts=(SupportingFact("D", 0),))) == []
        assert gold_passages(Task("q", "?", ("a",))) == []

    def test_passages_and_solution_of_an_environment(self) -> None:
        env = FICTION()
        rows = [{"task_index": index, "seed": index} for index in (3, 3, 5)]
        tasks = [env.unwrapped.tasks[row["task_index"]] for row in rows]
        records = [record(task_id=task.id, gold_answers=task.answers) for task in tasks]
        context = PrivilegedContext({"": FICTION})
        passages = context.texts("passages", rows, records)
        assert all(title in passages[0] for title in tasks[0].supporting_titles)
        solutions = context.texts("solution", rows, records)
        assert solutions[0] == solutions[1] != solutions[2]
        assert solutions[0].startswith("A correct solution takes these turns:\n")
        assert solutions[0].rstrip().endswith(f"<answer>{tasks[0].answers[0]}</answer>")
        env.reset(seed=3, options={"task_index": 3})
        terminated = False
        for action in solutions[0].rstrip().split("\n", 1)[1].split("</tool_call>\n"):
            *_, terminated, _, info = env.step(action if "<answer>" in action else f"{action}</tool_call>")
        assert terminated and info["answer"] == tasks[0].answers[0]
        context.close()

    @samples(
        ("kind", "make_env", "message"),
        [
            ("answer", lambda: free_env(), "'free' has no privileged .*no gold answers"),
            ("passages", SmallEnv, "'t0' .*gold passages are not part of the data.*'answer'"),
            ("solution", lambda: free_env(), "no oracle for it"),
            ("solution", EchoEnv, "needs an environment with tasks .*, got EchoEnv"),
        ],
    )
    def test_what_an_environment_lacks_is_refused_before_anything_is_played(
        self, kind: str, make_env: Any, message: str
    ) -> None:
        with pytest.raises(ConfigurationError, match=message):
            PrivilegedContext({"": make_env}).check(kind)

    def test_without_an_environment_only_records_can_be_read(self) -> None:
        with pytest.raises(ConfigurationError, match="'solution' is read from the environment, and none was given"):
            PrivilegedContext().texts("solution", [{"task_index": 0}], [record()])


def prefixes(*rows: list[int], bos: int | None = None) -> Prefixes:
    width = max(1, *map(len, rows))
    ids = torch.tensor([row + [0] * (width - len(row)) for row in rows])
    return Prefixes(ids, torch.tensor([len(row) for row in rows]), bos)


class TestLayout:
    ids = torch.tensor([[0, 2, 5, 8, 9], [2, 6, 7, 7, 0]])
    mask = torch.tensor([[0, 1, 1, 1, 1], [1, 1, 1, 1, 0]])
    scored = torch.tensor([[False] * 3 + [True] * 2, [False] * 2 + [True] * 2 + [False]])

    def test_prefix_stands_in_front_of_each_sequence(self) -> None:
        layout = rows_layout(self.ids, self.mask, self.scored, None, prefixes([11, 12], [13]))
        assert layout.inputs["input_ids"].tolist() == [[11, 12, 2, 5, 8, 9], [13, 2, 6, 7, 7, 0]]
        assert layout.inputs["attention_mask"].tolist() == [[1] * 6, [1] * 5 + [0]]
        assert layout.labels.tolist() == [[-100, -100, -100, 8, 9, -100], [-100, -100, 7, 7, -100, -100]]

    def test_prefix_stands_behind_the_first_token_where_that_begins_every_text(self) -> None:
        layout = rows_layout(self.ids, self.mask, self.scored, None, prefixes([11, 12], [13], bos=2))
        assert layout.inputs["input_ids"].tolist() == [[2, 11, 12, 5, 8, 9], [2, 13, 6, 7, 7, 0]]

    def test_each_context_has_one(self) -> None:
        contexts = torch.tensor([[0, 0, 0, 1, 1], [0, 0, 0, 0, 0]])
        layout = rows_layout(self.ids, self.mask, self.scored, contexts, prefixes([11], []))
        assert layout.inputs["input_ids"].tolist() == [[11, 2, 5, 0], [11, 8, 9, 0], [2, 6, 7, 7]]

    def test_outputs_come_back_to_their_tokens(self) -> None:
        plain = rows_layout(self.ids, self.mask, self.scored, None)
        shifted = rows_layout(self.ids, self.mask, self.scored, None, prefixes([11, 12], [13]))
        for layout in (plain, shifted):
            labels = torch.where(layout.labels == -100, 0, layout.labels)
            assert layout.to_rows(labels).tolist() == [[0, 0, 0, 8, 9], [0, 0, 7, 7, 0]]


class TestCritic:
    def test_values_are_those_of_its_model_behind_the_prefix(self) -> None:
        critic = make_critic()
        with torch.no_grad():
            critic.model.score.weight.normal_()
        ids, mask = torch.tensor([[0, 2, 5, 8, 9], [2, 6, 7, 7, 8]]), torch.tensor([[0, 1, 1, 1, 1], [1] * 5])
        values = critic.values(ids, mask, length=2, prefixes=prefixes([11, 12], []))
        for row, sequence, own in ((0, [11, 12, 2, 5, 8, 9], 4), (1, [2, 6, 7, 7, 8], 3)):
            with torch.no_grad():
                expected = critic.model(input_ids=torch.tensor([sequence])).logits[0, own - 1 : own + 1, 0]
            assert_close(values[row], expected, rtol=1e-4, atol=1e-5)

    @pytest.mark.slow
    def test_learns_what_only_the_prefix_tells(self, tmp_path: Path) -> None:
        """Rollouts that look alike win or lose by an answer that the policy does not see."""
        batch = [
            Trajectory(
                **{
                    **{name: getattr(like, name) for name in ("turns", "terminated", "tokens")},
                    "gold_answers": (("yes", "no")[number % 2],),
                }
            )
            for number, like in enumerate([multi_turn_batch()[1]] * 8)
        ]
        wins = [float(number % 2) for number in range(8)]
        errors = {}
        for kind in ("answer", None):
            critic = make_trainer(
                tmp_path, give(batch), algorithm="ppo", num_generations=1, critic_privileged=kind, **RATES
            )
            output = score(critic)
            own = critic._prefixes(kind, critic.progress.batch)
            ids, attention = (
                torch.cat([output[f"prompt_{name}"], output[f"completion_{name}"]], dim=1) for name in ("ids", "mask")
            )
            targets = torch.tensor(wins)[:, None].expand_as(output["completion_ids"]).clone()
            for _ in range(30):
                values = critic.critic.values(ids, attention, length=targets.size(1), prefixes=own)
                critic.critic.fit(
                    ValueBatch(ids, attention, output["completion_mask"].bool(), targets, values, prefixes=own)
                )
            errors[kind] = (values[:, 0] - targets[:, 0]).abs().max().item()
        assert errors["answer"] < 0.2
        assert errors[None] > 0.4


RATES = {"critic_learning_rate": 3e-3, "critic_clip": None, "logprob_check_steps": 0}


class TestTeacherPass:
    @pytest.mark.parametrize("layout", ["packed", "rows"])
    @samples("batch", [multi_turn_batch, several_contexts])
    def test_scores_each_token_behind_the_prefix_of_its_context(self, tmp_path: Path, batch: Any, layout: str) -> None:
        rows = batch()
        trainer = make_trainer(
            tmp_path,
            give(rows),
            per_device_train_batch_size=len(rows),
            logprob_check_steps=0,
            update_layout=layout,
            beta=0.0,
        )
        output = score(trainer, len(rows))
        own = [[9, 8, 7][: number % 4] for number in range(len(rows))]
        trainer.progress.prefixes = prefixes(*own)
        found = trainer._logprobs(trainer.model, output)
        trainer.progress.prefixes = None
        for row, (trajectory, prefix) in enumerate(zip(rows, own, strict=True)):
            turns = zip(
                tokens_of(trajectory).spans, logps_of_turns(trainer.model, trajectory, prefix=prefix), strict=True
            )
            for (start, end), expected in turns:
                assert_close(found[row, start:end], expected.detach(), rtol=1e-4, atol=1e-5)


PRIVILEGED = {"critic_privileged": "answer", "teacher_privileged": "solution", "distillation_weight": 0.1}


@pytest.mark.slow
class TestNothingLeaks:
    def trainer(self, folder: Path, requests: list[Any], **settings: Any) -> Any:
        tokenizer = build_tokenizer()
        evaluation = {"eval_env_kwargs": {}, "eval_on_start": True, "eval_episodes": 8, "trace_steps": 1}
        args = config(folder, algorithm="ppo", num_generations=1, max_steps=1, **evaluation, **settings)
        trainer = build_trainer(args, build_model(tokenizer), tokenizer=tokenizer)
        collect = trainer.collect

        def watched(request: Any) -> RolloutResult:
            result = collect(request)
            requests.append((request.training, result))
            return result

        trainer.collect = watched
        return trainer

    def test_rollouts_records_traces_and_evaluations_are_those_of_a_run_without(self, tmp_path: Path) -> None:
        played = {}
        for name, settings in (("plain", {}), ("privileged", PRIVILEGED)):
            results: list[Any] = []
            trainer = self.trainer(tmp_path / name, results, **settings)
            written: list[str] = []
            texts = trainer.privileged.texts

            def noted(*arguments: Any, written: list[str] = written, texts: Any = texts) -> list[str]:
                written += texts(*arguments)
                return written[-len(arguments[1]) :]

            trainer.privileged.texts = noted
            trainer.train()
            played[name] = results, written, trainer.state.log_history
        (plain, nothing, logs), (results, written, privileged_logs) = played["plain"], played["privileged"]
        assert not nothing
        assert any("The correct answer is" in text for text in written)
        assert any("A correct solution" in text for text in written)
        assert [training for training, _ in results] == [training for training, _ in plain]
        for (_, ours), (_, theirs) in zip(results, plain, strict=True):
            assert [row.to_dict() | {"seconds": None} for row in ours.records] == [
                row.to_dict() | {"seconds": None} for row in theirs.records
            ]
        evaluations = [
            {
                key: value
                for key, value in log[0].items()
                if key.startswith("eval_") and "second" not in key and "runtime" not in key
            }
            for log in (logs, privileged_logs)
        ]
        assert evaluations[0] == evaluations[1]
        saved = "".join(path.read_text("utf-8") for path in (tmp_path / "privileged").rglob("*.jsonl"))
        assert '"advantages"' in saved
        assert "The correct answer is" not in saved and "A correct solution" not in saved

    def test_what_an_environment_lacks_is_refused_before_the_model_is_trained(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigurationError, match="needs an algorithm with a critic"):
            config(tmp_path, critic_privileged="answer")


class TestRefused:
    @samples(
        ("settings", "message"),
        [
            ({"critic_privileged": "answer"}, "needs an algorithm with a critic"),
            ({"critic_privileged": "gold", "algorithm": "ppo"}, r"critic_privileged: got 'gold'"),
            ({"teacher_privileged": "answer"}, "nothing is learned from a teacher"),
            ({"teacher_model_name_or_path": "teacher"}, "nothing is learned from a teacher"),
            ({"distillation_weight": 1.0}, "would be its own teacher and read the same as itself"),
            ({"algorithm": "opd"}, "would be its own teacher"),
            ({"distillation_failures_only": True}, "distillation_failures_only=True has no effect with .* no teacher"),
            ({"distillation_placement": "reward"}, "distillation_placement='reward' has no effect .* at 'advantage'"),
            ({"algorithm": "opsd", "distillation_placement": "reward"}, "which reads no rewards"),
            (
                {"algorithm": "opsd", "kl_placement": "reward", "beta": 0.1},
                "reads no rewards: set kl_placement to loss",
            ),
            (
                {"algorithm": "opsd", "refill_groups": 2, "num_generations": 4},
                "a teacher scores their tokens all the same",
            ),
            ({"algorithm": "opsd", "loss_mask": False}, "not the environment's"),
            (
                {"algorithm": "opsd", "distillation_placement": "loss", "cast_lm_head_to_fp32": True},
                "set cast_lm_head_to_fp32=False",
            ),
        ],
    )
    def test_options_without_effect(self, tmp_path: Path, settings: dict[str, Any], message: str) -> None:
        with pytest.raises(ConfigurationError, match=message):
            make_args(tmp_path, **settings)

    def test_what_a_preset_sets_may_stay_without_a_teacher(self, tmp_path: Path) -> None:
        assert make_args(tmp_path, algorithm="dgpo", distillation_weight=0.0).distillation_placement == "reward"

    def test_gamma_of_an_algorithm_without_rewards(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigurationError, match=r"gamma=0\.5 has no effect on opd"):
            make_trainer(tmp_path, give([]), algorithm="opsd", gamma=0.5)


def test_models_and_tokenizers_of_the_kit_have_no_token_that_begins_every_text() -> None:
    """Or the tests above would not see the branch without it."""
    assert make_tokenizer().bos_token_id is None
    assert make_model().config.bos_token_id is None
