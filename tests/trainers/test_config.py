"""AgentConfig: presets, refusals, and the ways in which it is filled."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from trl import TrlParser

from agent_r1_gym.errors import ConfigurationError
from tests.kit.samples import samples
from tests.kit.small_runs import make_args
from trainers.algorithms.advantages import ESTIMATORS, check_options
from trainers.algorithms.batch import credit_options
from trainers.config.agent import AgentConfig, _launched_processes, prepare_defaults
from trainers.config.options import OPTION_GROUPS
from trainers.config.presets import ALGORITHMS

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")
BUILT_IN = tuple(ALGORITHMS)  # before other tests register theirs
CPU = ["--use_cpu", "true", "--bf16", "false", "--report_to", "none"]


def bare(folder: Path, **settings: Any) -> AgentConfig:
    return AgentConfig(output_dir=str(folder), use_cpu=True, bf16=False, report_to="none", **settings)


class TestPresets:
    @pytest.mark.parametrize("algorithm", ALGORITHMS)
    def test_each_runs_as_it_is(self, tmp_path: Path, algorithm: str) -> None:
        teacher = {"teacher_model_name_or_path": "any"} if algorithm in ("opd", "dgpo") else {}
        args = bare(tmp_path, algorithm=algorithm, **teacher)
        assert args.preset.estimator in ESTIMATORS
        check_options(args.preset.estimator, credit_options(args))
        assert args.generation_batch_size % args.num_generations == 0
        assert None not in (args.beta, args.epsilon, args.loss_type, args.kl_placement)

    def test_paper(self, tmp_path: Path) -> None:
        args = bare(tmp_path)
        assert (args.num_generations, args.beta, args.kl_placement, args.learning_rate) == (5, 0.001, "loss", 1e-6)
        assert (args.max_prompt_length, args.max_completion_length, args.max_turn_tokens) == (
            8192,
            2048,
            None,
        )  # on a CPU
        assert args.critic_learning_rate == 1e-5

    def test_papers_of_the_losses(self, tmp_path: Path) -> None:
        gspo = bare(tmp_path, algorithm="gspo")
        assert (gspo.importance_sampling_level, gspo.epsilon, gspo.epsilon_high) == ("sequence", 3e-4, 4e-4)
        dapo = bare(tmp_path, algorithm="dapo")
        assert (dapo.epsilon, dapo.epsilon_high, dapo.mask_truncated_completions) == (0.2, 0.28, True)
        assert bare(tmp_path, algorithm="dr_grpo").scale_rewards == "none"
        assert bare(tmp_path, algorithm="cispo").loss_type == "cispo"

    def test_papers_of_credit_by_turn(self, tmp_path: Path) -> None:
        assert [bare(tmp_path, algorithm=name).lam for name in ("ppo", "gagpo")] == [1.0, 0.95]
        assert [bare(tmp_path, algorithm=name).step_weight for name in ("gigpo", "mt_grpo")] == [1.0, 0.5]
        assert bare(tmp_path, algorithm="gagpo", lam=0.5).lam == 0.5

    def test_papers_of_ratios_by_turn_and_of_teachers(self, tmp_path: Path) -> None:
        levels = [bare(tmp_path, algorithm=name).importance_sampling_level for name in ("grpo", "steppo", "gagpo")]
        assert levels == ["token", "turn", "turn"]
        steppo, opsd = (bare(tmp_path, algorithm=name) for name in ("steppo", "opsd"))
        assert (steppo.epsilon, steppo.beta, steppo.num_generations) == (0.2, 0.0, 1)
        assert (opsd.teacher_privileged, opsd.distillation_weight, opsd.distillation_placement) == (
            "solution",
            1.0,
            "advantage",
        )
        dgpo = bare(tmp_path, algorithm="dgpo", teacher_model_name_or_path="any")
        assert (dgpo.distillation_weight, dgpo.distillation_placement) == (0.001, "reward")
        assert dgpo.distillation_failures_only

    def test_clip_range_follows_the_loss(self, tmp_path: Path) -> None:
        """CISPO bounds the ratio itself, the others its distance from 1."""
        assert bare(tmp_path, algorithm="cispo").epsilon_high == 5.0
        assert bare(tmp_path, loss_type="cispo").epsilon_high == 5.0
        assert bare(tmp_path, algorithm="dapo", loss_type="cispo").epsilon_high == 5.0
        assert bare(tmp_path, algorithm="cispo", loss_type="grpo").epsilon_high is None
        assert bare(tmp_path, loss_type="cispo", epsilon_high=3.0).epsilon_high == 3.0

    def test_kl_is_the_papers_unless_the_user_wants_trls(self, tmp_path: Path) -> None:
        assert bare(tmp_path).use_bias_correction_kl is False
        assert bare(tmp_path, use_bias_correction_kl=True).use_bias_correction_kl is True

    def test_what_the_user_sets_wins(self, tmp_path: Path) -> None:
        args = bare(tmp_path, algorithm="dapo", mask_truncated_completions=False, epsilon_high=0.2, beta=0.5)
        assert (args.mask_truncated_completions, args.epsilon_high, args.beta) == (False, 0.2, 0.5)


class TestRefusals:
    @pytest.mark.parametrize(
        ("settings", "message"),
        [
            ({"algorithm": "grop"}, r"algorithm: got 'grop'\. Did you mean 'grpo'"),
            ({"kl_placement": "los"}, r"kl_placement: got 'los'\. Did you mean 'loss'"),
            ({"loss_type": "nonsense"}, r"loss_type: got 'nonsense'\. Known: 'bnpo', .*'grpo'"),
            ({"gae_level": "word"}, r"gae_level: got 'word'\. Known: 'token', 'turn'"),
            ({"gamma": 1.5}, r"gamma must lie between 0 and 1, got 1\.5"),
            ({"max_turn_tokens": 0}, r"max_turn_tokens must lie between 1 and inf, got 0"),
            ({"num_generations": 0}, "num_generations must lie between 1 and inf, got 0"),
            ({"gradient_accumulation_steps": 0}, "gradient_accumulation_steps must lie between 1 and inf, got 0"),
            ({"max_completion_length": -1}, "max_completion_length must lie between 1 and inf, got -1"),
            ({"learning_rate": -1.0}, r"learning_rate must lie between 0 and inf, got -1\.0"),
            ({"temperature": 0.0}, r"temperature=0\.0: .* Set it above 0; eval_temperature=0 evaluates greedily"),
            ({"critic_clip": -1.0}, r"critic_clip must lie between 0 and inf, got -1\.0"),
            ({"seed": -1}, "seed must lie between 0 and 4294967295, got -1"),
            (
                {"num_generations": 1},
                r"num_generations=1: grpo compares rollouts .* choose algorithm reinforce\+\+, ppo",
            ),
            ({"reward_weights": [1.0]}, r"reward_weights=\[1\.0\] has no effect here"),
            ({"max_tool_calling_iterations": 3}, r"max_tool_calling_iterations=3 has no effect here"),
        ],
    )
    def test_value(self, tmp_path: Path, settings: dict[str, Any], message: str) -> None:
        with pytest.raises(ConfigurationError, match=message):
            make_args(tmp_path, **settings)

    def test_loss_mask_off_with_advantages_kept_off_the_environment(self, tmp_path: Path) -> None:
        off = {"loss_mask": False, "advantage_mask": True}
        for nothing in ({"beta": 0.0}, {"beta": 0.1, "kl_placement": "reward"}):
            with pytest.raises(ConfigurationError, match="loss_mask=False with advantage_mask=True changes nothing"):
                make_args(tmp_path, **off, **nothing)
        assert make_args(tmp_path, **off, beta=0.1).advantage_mask is True  # its KL is in the loss
        assert make_args(tmp_path, loss_mask=False).advantage_mask is False
        assert make_args(tmp_path).advantage_mask is True

    @samples(
        ("settings", "message"),
        [
            ({"beta": 0.0}, r"use_bias_correction_kl=True has no effect with beta=0\.0, kl_placement=loss"),
            ({"beta": 0.1, "kl_placement": "reward"}, r"with beta=0\.1, kl_placement=reward: .* Leave it at False"),
        ],
    )
    def test_a_correction_of_the_kl_in_the_loss_without_one(
        self, tmp_path: Path, settings: dict[str, Any], message: str
    ) -> None:
        with pytest.raises(ConfigurationError, match=message):
            make_args(tmp_path, use_bias_correction_kl=True, **settings)
        assert make_args(tmp_path, use_bias_correction_kl=True, beta=0.1).use_bias_correction_kl

    def test_tokens_of_the_environment_in_a_loss_that_counts_turns(self, tmp_path: Path) -> None:
        for level in ("turn", "token"):
            with pytest.raises(ConfigurationError, match="algorithm steppo with loss_mask=False: a turn counts once"):
                make_args(tmp_path, algorithm="steppo", loss_mask=False, importance_sampling_level=level)
        assert make_args(tmp_path, algorithm="steppo", advantage_mask=False).loss_mask

    @samples(
        ("settings", "message"),
        [
            ({"beta": 0.1, "kl_placement": "reward"}, r"kl_placement=reward and beta=0\.1 they differ by the KL"),
            ({"normalise_process_rewards": True}, "scales a part of each return by the whole batch"),
            ({"algorithm": "reinforce++-baseline"}, r"algorithm reinforce\+\+-baseline may learn from them"),
        ],
    )
    def test_replacing_groups_that_teach(self, tmp_path: Path, settings: dict[str, Any], message: str) -> None:
        with pytest.raises(ConfigurationError, match=f"refill_groups=2 replaces groups .*{message}"):
            make_args(tmp_path, refill_groups=2, **settings)
        assert make_args(tmp_path, **settings).refill_groups == 0
        assert make_args(tmp_path, refill_groups=2, kl_placement="reward", gamma=0.9).refill_groups == 2

    @samples(
        ("settings", "message"),
        [
            ({"beta": 0.1}, r"beta=0\.1 and kl_placement=loss: the KL moves the policy"),
            ({"entropy_coef": 0.1}, r"entropy_coef=0\.1, .* need the entropies"),
            ({"top_entropy_quantile": 0.5}, r"top_entropy_quantile=0\.5, which need"),
            (
                {"algorithm": "opsd", "teacher_privileged": "answer", "distillation_placement": "loss"},
                "distillation_placement=loss: the teacher moves the policy",
            ),
        ],
    )
    def test_skipping_rollouts_that_teach(self, tmp_path: Path, settings: dict[str, Any], message: str) -> None:
        with pytest.raises(ConfigurationError, match=f"skip_zero_advantages=True with .*{message}"):
            make_args(tmp_path, skip_zero_advantages=True, **settings)
        assert not make_args(tmp_path, **settings).skip_zero_advantages
        assert make_args(tmp_path, skip_zero_advantages=True, beta=0.1, kl_placement="reward").skip_zero_advantages

    def test_unknown_key(self, tmp_path: Path) -> None:
        with pytest.raises(TypeError, match="gama"):
            make_args(tmp_path, gama=0.9)
        with pytest.raises(ValueError, match="--gama"):
            TrlParser((AgentConfig,)).parse_args_and_config(["--output_dir", str(tmp_path), *CPU, "--gama", "0.9"])

    def test_batches_that_do_not_divide(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigurationError, match="product must be a multiple of num_generations=3"):
            make_args(tmp_path, num_generations=3)

    @pytest.mark.parametrize(
        ("settings", "words"),
        [
            ({"generation_batch_size": 12}, "Do not set generation_batch_size, or set it to a multiple of that"),
            (
                {"eval_strategy": "steps", "eval_steps": 1, "num_generations_eval": 3, "per_device_eval_batch_size": 8},
                "Set per_device_eval_batch_size to a multiple of num_generations_eval=3",
            ),
        ],
    )
    def test_other_batches_that_do_not_divide(self, tmp_path: Path, settings: dict[str, Any], words: str) -> None:
        with pytest.raises(ConfigurationError, match=words):
            make_args(tmp_path, **settings)

    @pytest.mark.parametrize("name", ["env_kwargs", "eval_env_kwargs", "lr_scheduler_kwargs"])
    @pytest.mark.parametrize("text", ["{bad", '{"style": "compact",}'])
    def test_text_that_is_no_json(self, tmp_path: Path, name: str, text: str) -> None:
        with pytest.raises(ConfigurationError, match=f"^{name} must be a JSON object, .*got {re.escape(repr(text))}: "):
            make_args(tmp_path, **{name: text})

    def test_bf16_without_an_accelerator_names_the_cpu(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("is_torch_bf16_gpu_available", "is_torch_xla_available"):
            monkeypatch.setattr(f"transformers.training_args.{name}", lambda: False)
        monkeypatch.setattr("trainers.config.agent.gpu_has_bf16", lambda: False)
        monkeypatch.setattr("trainers.config.agent.has_accelerator", lambda: False)
        config = AgentConfig(output_dir=str(tmp_path), report_to="none")
        assert (config.bf16, config.use_cpu) == (False, False)
        config = AgentConfig(output_dir=str(tmp_path), report_to="none", bf16=True)
        assert (config.bf16, config.use_cpu, config.device.type) == (True, True, "cpu")
        assert "bf16" not in config.open_options

    def test_a_gpu_without_bf16_refuses_it(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("is_torch_bf16_gpu_available", "is_torch_xla_available"):
            monkeypatch.setattr(f"transformers.training_args.{name}", lambda: False)
        monkeypatch.setattr("trainers.config.agent.has_accelerator", lambda: True)
        with pytest.raises(ConfigurationError, match=r"^bf16=True: this GPU does not have it"):
            AgentConfig(output_dir=str(tmp_path), report_to="none", bf16=True)

    def test_a_gpu_that_only_emulates_bf16_computes_in_float32(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("torch.cuda.is_available", lambda: True)
        monkeypatch.setattr("torch.cuda.is_bf16_supported", lambda including_emulation=True: including_emulation)
        monkeypatch.setattr("trainers.config.agent.has_accelerator", lambda: True)
        config = SimpleNamespace(bf16=None, fp16=False, use_cpu=False)
        prepare_defaults(config)
        assert config.bf16 is False

    def test_a_gpu_that_has_bf16_is_used_with_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("trainers.config.agent.gpu_has_bf16", lambda: True)
        monkeypatch.setattr("trainers.config.agent.has_accelerator", lambda: True)
        wishes = ((False, False), (True, False), (False, True))
        chosen = [SimpleNamespace(bf16=None, fp16=fp16, use_cpu=cpu) for fp16, cpu in wishes]
        for config in chosen:
            prepare_defaults(config)
        assert [(config.bf16, config.use_cpu) for config in chosen] == [(True, False), (None, False), (False, True)]

    def test_trls_own_refusals_stay(self, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match="can not be both configured"):
            make_args(tmp_path, steps_per_generation=2, generation_batch_size=16)

    @pytest.mark.parametrize("engine", ["cached", "vllm"])
    def test_backends_that_the_engine_would_leave_idle(self, tmp_path: Path, engine: str) -> None:
        backend = "use_transformers_continuous_batching"
        with pytest.raises(ConfigurationError, match=f"{backend}=True needs engine=trl; engine={engine} lacks it"):
            make_args(tmp_path, engine=engine, **{backend: True})
        assert getattr(make_args(tmp_path, engine="trl", **{backend: True}), backend)

    @pytest.mark.parametrize("engine", ["cached", "trl", "vllm"])
    def test_trls_own_vllm_is_refused(self, tmp_path: Path, engine: str) -> None:
        with pytest.raises(ConfigurationError, match="set engine=vllm instead"):
            make_args(tmp_path, engine=engine, use_vllm=True)

    @pytest.mark.parametrize(
        ("changes", "words"),
        [
            ({"top_p": 0.9}, "log-probs of the truncated distribution"),
            ({"top_k": 5}, "log-probs of the truncated distribution"),
            ({"vllm_mode": "server"}, "vllm_server_base_url=None: servers are named by"),
            ({"vllm_server_base_url": "http://127.0.0.1:8000"}, "vllm_mode='colocate' with"),
            ({"vllm_mode": "servers"}, "Did you mean 'server'"),
            ({"vllm_tensor_parallel_size": 2}, "vllm_tensor_parallel_size=2 has no effect here"),
            ({"loss_type": "vespo"}, "token_truncate or token_mask"),
            ({"min_p": 0.1}, "min_p=0.1 needs engine=trl; engine=vllm lacks it"),
            ({"rollout_slots": 0}, "rollout_slots must lie between 1"),
        ],
    )
    def test_what_vllm_cannot_do(self, tmp_path: Path, changes: dict[str, Any], words: str) -> None:
        with pytest.raises(ConfigurationError, match=words):
            make_args(tmp_path, engine="vllm", **changes)

    @pytest.mark.parametrize("changes", [{"rollout_slots": 3}, {"rollout_deadline": 60.0}, {"eval_temperature": 0.0}])
    def test_what_engines_of_our_own_are_needed_for(self, tmp_path: Path, changes: dict[str, Any]) -> None:
        with pytest.raises(ConfigurationError, match="needs engine=cached or engine=vllm"):
            make_args(tmp_path, engine="trl", **changes)

    def test_options_of_vllm_without_it(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigurationError, match="vllm_enable_sleep_mode=True needs engine=vllm"):
            make_args(tmp_path, vllm_enable_sleep_mode=True)
        servers = {"vllm_mode": "server", "vllm_server_base_url": "http://a:1,http://b:2"}
        assert make_args(tmp_path, engine="vllm", **servers).vllm_mode == "server"

    @pytest.mark.parametrize(
        ("name", "value"), [("generation_kwargs", {"min_p": 0.2}), ("cache_implementation", "static")]
    )
    def test_options_of_generate_that_the_cached_engine_never_reads(
        self, tmp_path: Path, name: str, value: Any
    ) -> None:
        with pytest.raises(ConfigurationError, match=f"{name}=.* needs engine=trl"):
            make_args(tmp_path, **{name: value})
        assert getattr(make_args(tmp_path, engine="trl", **{name: value}), name) == value


class TestSources:
    def test_one_rollout_a_prompt(self, tmp_path: Path) -> None:
        for algorithm in ("reinforce++", "ppo"):
            args = make_args(tmp_path, algorithm=algorithm, num_generations=1, per_device_train_batch_size=3)
            assert args.num_generations == 1
            assert args.generation_batch_size == 3
            accumulated = {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 5}
            args = make_args(tmp_path, algorithm=algorithm, num_generations=1, **accumulated)
            assert (args.num_generations, args.generation_batch_size) == (1, 5)
            with pytest.raises(ConfigurationError, match="one rollout per generation batch"):
                make_args(tmp_path, algorithm=algorithm, num_generations=1, per_device_train_batch_size=1)

    def test_one_rollout_a_process(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("trainers.config.agent._launched_processes", lambda: 8)
        monkeypatch.setattr(AgentConfig, "world_size", 8)
        args = make_args(tmp_path, algorithm="ppo", num_generations=1, per_device_train_batch_size=1)
        assert (args.num_generations, args.generation_batch_size, args.process_batch) == (1, 8, 1)

    def test_processes_are_those_that_were_launched(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("WORLD_SIZE", raising=False)
        assert _launched_processes() == 1
        monkeypatch.setenv("WORLD_SIZE", "8")
        assert _launched_processes() == 8

    def test_command_line(self, tmp_path: Path) -> None:
        command = [
            "--output_dir",
            str(tmp_path),
            *CPU,
            "--algorithm",
            "ppo",
            "--env",
            "Some/Env-v0",
            "--env_kwargs",
            '{"max_turns": 3}',
        ]
        command += ["--loss_mask", "false", "--critic_clip", "0.1", "--mask_truncated_completions", "true"]
        (args,) = TrlParser((AgentConfig,)).parse_args_and_config(command)
        assert (args.env_id, args.env_kwargs) == ("Some/Env-v0", {"max_turns": 3})
        assert (args.loss_mask, args.critic_clip, args.mask_truncated_completions) == (False, 0.1, True)
        assert args.num_generations == 1

    def test_yaml(self, tmp_path: Path) -> None:
        path = tmp_path / "run.yaml"
        path.write_text("algorithm: rloo\nenv_id: AgentR1/FictionQA-v0\nenv_kwargs: {max_turns: 4}\ngamma: 0.9\n")
        command = ["--config", str(path), "--output_dir", str(tmp_path), *CPU]
        (args,) = TrlParser((AgentConfig,)).parse_args_and_config(command)
        assert (args.env_id, args.env_kwargs, args.gamma) == ("AgentR1/FictionQA-v0", {"max_turns": 4}, 0.9)
        assert args.algorithm == "rloo"

    def test_every_own_field_has_a_line_of_help(self) -> None:
        own = {field.name for group in OPTION_GROUPS for field in fields(group)}
        helps = {name: field.metadata.get("help") for name, field in AgentConfig.__dataclass_fields__.items()}
        assert len(own) > 30
        assert all(helps[name] for name in own)

    def test_the_help_of_the_algorithm_lists_every_preset(self) -> None:
        text = AgentConfig.__dataclass_fields__["algorithm"].metadata["help"]
        assert text.removeprefix("Algorithm: ").split(", or ")[0].split(", ") == list(BUILT_IN)
