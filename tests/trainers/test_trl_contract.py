"""The private names of TRL and transformers in use. A failure means that one moved, see `trl_internals`."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
import trl
from torch.testing import assert_close
from transformers import TrainerCallback
from trl.trainer import grpo_trainer
from trl.trainer import utils as trl_utils

from tests.kit.models import make_model, make_tokenizer
from tests.kit.samples import samples
from tests.kit.small_runs import gradients, make_args, make_rows, one_turn_batch
from trainers.algorithms.batch import tokens_of
from trainers.resume.resumable import ResumableTrainer
from trainers.trainer import AgentTrainer
from trainers.trl_internals import ATTRIBUTES, CALLED, OVERRIDDEN, labels_only

ROOT = Path(__file__).parents[2]
VERSIONS = f"trl {trl.__version__}, transformers {transformers.__version__}"
LOSSES = ("grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo", "luspo", "vespo")
KEYS = {"prompt_ids", "prompt_mask", "completion_ids", "completion_mask", "advantages", "num_items_in_batch"}

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")


def moved(what: str) -> str:
    return f"A private name of TRL moved ({VERSIONS}): {what}"


def parameters_of(function: Any) -> list[str]:
    return list(inspect.signature(function).parameters)


class Stub:
    """A GRPOTrainer around fixed completions, and what its `rollout_func` saw."""

    def __init__(self, folder: Path, *, mask: bool = True, logprobs: bool = True, **settings: Any) -> None:
        self.prompts: list[Any] = []
        self.columns: dict[str, Any] = {}
        batch = one_turn_batch()

        def roll_out(prompts: list[Any], trainer: Any) -> dict[str, Any]:
            self.prompts = prompts
            self.rollout = {
                "prompt_ids": [list(tokens_of(t).prompt_ids) for t in batch],
                "completion_ids": [list(tokens_of(t).completion_ids) for t in batch],
                "logprobs": [list(tokens_of(t).logprobs) for t in batch] if logprobs else None,
                "extra_field": [float(index) for index in range(len(batch))],
            }
            if mask:
                self.rollout["env_mask"] = [[0] + [1] * (len(tokens_of(t).completion_ids) - 1) for t in batch]
            return self.rollout

        def reward(completions: list[Any], **columns: Any) -> list[float | None]:
            self.columns = columns
            return [None, *(t.turns[0].reward for t in batch[1:])]

        self.trainer = trl.GRPOTrainer(
            make_model(),
            reward_funcs=reward,
            args=make_args(folder, scale_rewards="group", **settings),
            train_dataset=make_rows(),
            processing_class=make_tokenizer(),
            rollout_func=roll_out,
        )
        rows = [{"prompt": [{"role": "user", "content": f"say {index}"}], "row": index} for index in range(8)]
        self.trainer.model.train()
        self.output: dict[str, Any] = self.trainer._generate_and_score_completions(rows)


@pytest.fixture
def stub(tmp_path: Path) -> Stub:
    return Stub(tmp_path)


class TestSignatures:
    @samples(("name", "expected"), [*OVERRIDDEN.items(), *CALLED.items()])
    def test_methods_that_are_overridden_or_called(self, name: str, expected: tuple[Any, ...]) -> None:
        parameters = tuple(parameters_of(getattr(trl.GRPOTrainer, name)))
        if expected[-1] is ...:
            expected = expected[:-1]
            parameters = parameters[: len(expected)]
        assert parameters == expected, moved(f"GRPOTrainer.{name}")

    def test_the_table_names_every_private_method_that_is_overridden(self) -> None:
        classes = (ResumableTrainer, AgentTrainer)
        own = {name for cls in classes for name in vars(cls) if name.startswith("_") and not name.startswith("__")}
        overridden = {name for name in own if callable(getattr(trl.GRPOTrainer, name, None))}
        assert overridden == {name for name in OVERRIDDEN if name.startswith("_")}

    def test_private_names_of_trl_are_used_in_one_file(self) -> None:
        """Unlike overrides: those call the same method of `super()`, and are called by TRL."""
        names = "|".join({*ATTRIBUTES, *CALLED, "_tr_loss", "_globalstep_last_logged", "create_model_from_path"})
        used = re.compile(rf"\b(?:self|trainer|self\._trainer|self\.trainer|grpo_trainer|trl)\.(?:{names})\b")
        folders = ("monitoring", "resume", "commands")
        files = {ROOT / "trainers" / "trainer.py", ROOT / "trainers" / "rollouts" / "trl_engine.py"}
        files |= {path for name in folders for path in (ROOT / "trainers" / name).rglob("*.py")}
        assert not [path.name for path in files if used.search(path.read_text(encoding="utf-8"))]

    def test_reference_model_is_made_by_a_function_that_can_be_replaced(self) -> None:
        assert "create_model_from_path(" in inspect.getsource(grpo_trainer.GRPOTrainer.__init__), moved(
            "grpo_trainer.create_model_from_path makes the reference model"
        )

    def test_what_a_turn_of_trls_backend_is_lent(self) -> None:
        source = inspect.getsource(trl.GRPOTrainer)
        for name in ("self.eos_token_ids", "self.generation_config"):
            assert name in source, moved(name)

    def test_weights_are_handed_over_before_rollouts(self) -> None:
        source = inspect.getsource(trl.GRPOTrainer._generate)
        for name in (
            "self.use_vllm and self.state.global_step != self._last_loaded_step",
            "self.vllm_generation.sync_weights()",
        ):
            assert name in source, moved(name)
        assert not set(re.findall(r"self\.vllm_generation\.(\w+)", source)) - {"sync_weights"}

    def test_groups_of_fsdp2_know_whether_they_keep_their_weights(self) -> None:
        source = inspect.getsource(torch.distributed.fsdp.FSDPModule.set_reshard_after_forward)
        for name in ("_get_fsdp_state()", "state._fsdp_param_group", "fsdp_param_group.post_forward_mesh_info"):
            assert name in source, moved(f"FSDPModule: {name}")

    def test_the_output_layer_asks_whether_to_score_labelled_positions_only(self) -> None:
        source = inspect.getsource(trl_utils.add_fused_lm_head)
        for name in (
            "_use_triton(hidden_states.device)",
            "_CHUNKED_LOGPROB_CHUNK_SIZE",
            "hidden_states[mask] if compact",
        ):
            assert name in source, moved(name)
        before = trl_utils._use_triton, trl_utils._CHUNKED_LOGPROB_CHUNK_SIZE
        with labels_only(torch.device("cpu"), vocab_size=451):
            assert trl_utils._use_triton(torch.device("cpu"))
            assert trl_utils._CHUNKED_LOGPROB_CHUNK_SIZE == 451
        assert (trl_utils._use_triton, trl_utils._CHUNKED_LOGPROB_CHUNK_SIZE) == before
        with labels_only(torch.device("cuda"), vocab_size=451):
            assert (trl_utils._use_triton, trl_utils._CHUNKED_LOGPROB_CHUNK_SIZE) == before

    def test_constructor(self) -> None:
        needed = {"model", "reward_funcs", "args", "train_dataset", "eval_dataset", "processing_class", "callbacks"}
        needed |= {"optimizers", "quantization_config", "peft_config", "rollout_func"}
        assert needed <= set(parameters_of(trl.GRPOTrainer.__init__)), moved("GRPOTrainer.__init__")


class TestRollout:
    def test_rollout_func_gets_one_prompt_per_completion_and_its_fields_reach_the_rewards(self, stub: Stub) -> None:
        assert len(stub.prompts) == 8, moved("rollout_func gets the copies of each prompt")
        assert stub.columns["extra_field"] == [float(index) for index in range(8)], moved(
            "extra fields of rollout_func"
        )
        assert stub.columns["row"] == list(range(8)), moved("columns of the rows")

    def test_scored_batch(self, stub: Stub, tmp_path: Path) -> None:
        output = stub.output
        assert set(output) == KEYS | {"tool_mask", "sampling_per_token_logps"}, moved("keys of the scored batch")
        assert set(Stub(tmp_path, mask=False, logprobs=False).output) == KEYS, moved("keys of the scored batch")
        assert output["advantages"].shape == (8,), moved("shape of advantages")
        for key in ("completion_ids", "completion_mask", "tool_mask", "sampling_per_token_logps"):
            assert output[key].shape == (8, 3), moved(f"shape of {key}")
        lengths = [len(tokens_of(t).completion_ids) for t in one_turn_batch()]
        assert output["num_items_in_batch"] == sum(lengths) - 8, moved("num_items_in_batch follows env_mask")
        assert output["prompt_mask"][7].tolist() == [0, 1, 1, 1], moved("padding of prompts, at the left")
        assert output["completion_mask"][7].tolist() == [1, 0, 0], moved("padding of completions, at the right")

    def test_rollout_without_reward_is_in_no_statistic(self, stub: Stub) -> None:
        rewards = torch.tensor([t.turns[0].reward for t in one_turn_batch()][1:])
        assert stub.trainer._metrics["train"]["reward"] == [pytest.approx(rewards.mean().item())], moved("reward None")
        assert stub.output["advantages"][0] == 0, moved("reward None")

    def test_old_log_probs_come_where_a_batch_serves_several_steps(self, tmp_path: Path) -> None:
        output = Stub(tmp_path, num_iterations=2).output
        assert "old_per_token_logps" in output, moved("old_per_token_logps")

    def test_state_that_checkpoints_keep(self, stub: Stub) -> None:
        trainer = stub.trainer
        for name in ATTRIBUTES:
            assert hasattr(trainer, name), moved(f"GRPOTrainer.{name}")
        assert trainer._step == 0, moved("GRPOTrainer._step")
        assert trainer._buffered_inputs is None, moved("GRPOTrainer._buffered_inputs")
        assert len(trainer._logs["advantages"]) == 8, moved("GRPOTrainer._logs")
        assert hasattr(trainer._get_train_sampler(), "generator"), moved("RepeatSampler.generator")
        for name in (
            "beta",
            "shuffle_dataset",
            "scale_rewards",
            "mask_truncated_completions",
            "num_generations",
            "num_generations_eval",
        ):
            assert hasattr(trainer, name), moved(f"GRPOTrainer.{name}")

    @pytest.mark.slow
    def test_sum_of_losses_is_set_to_0_before_callbacks_hear_of_the_beginning(self, tmp_path: Path) -> None:
        sums: list[tuple[float, int]] = []

        class Begin(TrainerCallback):
            def on_train_begin(self, *_arguments: Any, **_others: Any) -> None:
                sums.append((float(stub.trainer._tr_loss), stub.trainer._globalstep_last_logged))

        stub = Stub(tmp_path, max_steps=1)
        stub.trainer.add_callback(Begin())
        stub.trainer._tr_loss = torch.tensor(5.0)
        stub.trainer.train()
        assert sums == [(0.0, 0)], moved("Trainer._tr_loss, Trainer._globalstep_last_logged")


class TestLoss:
    @pytest.mark.slow
    @pytest.mark.parametrize("level", ["token", "sequence"])
    @samples("loss_type", LOSSES)
    def test_takes_advantages_of_tokens(self, tmp_path: Path, loss_type: str, level: str) -> None:
        stub = Stub(tmp_path, loss_type=loss_type, importance_sampling_level=level)
        loss, expected = gradients(stub.trainer, stub.output)
        advantages = stub.output["advantages"]
        assert torch.any(advantages != 0)
        wide = stub.output | {"advantages": advantages[:, None].expand(8, 3).contiguous()}
        wide_loss, found = gradients(stub.trainer, wide)
        assert wide_loss == pytest.approx(loss, rel=1e-5, abs=1e-8), moved(f"(B, T) advantages in {loss_type}")
        assert_close(found, expected, rtol=1e-4, atol=1e-7)

    def test_reads_old_log_probs_after_the_log_prob_pass(self) -> None:
        """Ratios per turn replace them once the policy's own are known."""
        source = inspect.getsource(trl.GRPOTrainer._compute_loss)
        log_probs = source.find("self._get_per_token_logps_and_entropies(")
        assert -1 < log_probs < source.find('inputs.get("old_per_token_logps")'), moved("when old log-probs are read")

    def test_reads_beta_when_it_is_called(self, tmp_path: Path) -> None:
        stub = Stub(tmp_path, loss_type="dapo")
        plain, _ = gradients(stub.trainer, stub.output)
        stub.trainer.beta = 0.5
        reference = stub.output["sampling_per_token_logps"] - 1
        with_kl, _ = gradients(stub.trainer, stub.output | {"ref_per_token_logps": reference})
        assert with_kl > plain, moved("KL in the loss follows trainer.beta")


class TestConfig:
    def test_one_rollout_a_prompt_is_refused_by_the_config_alone(self, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match="at least 2 generations"):
            trl.GRPOConfig(output_dir=str(tmp_path), num_generations=1, use_cpu=True, bf16=False)
        args = make_args(tmp_path, algorithm="ppo", num_generations=1, per_device_train_batch_size=3)
        assert args.num_generations == 1, moved("refusal of num_generations=1")
        assert args.generation_batch_size == 3

    def test_fields_with_presets_exist(self) -> None:
        fields = {name: field.default for name, field in trl.GRPOConfig.__dataclass_fields__.items()}
        known = {"epsilon": 0.2, "epsilon_high": None, "importance_sampling_level": "token"}
        known |= {"mask_truncated_completions": False, "loss_type": "dapo", "beta": 0.0, "num_generations": 8}
        assert {name: fields.get(name) for name in known} == known, moved("defaults of GRPOConfig")
