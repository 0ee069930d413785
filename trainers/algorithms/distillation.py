"""On-policy distillation: a teacher scores the tokens that the policy sampled, and what it prefers gets advantage.

For a sampled token y_t after the context s_t, with policy p before its update and teacher q:

    d_t = log q(y_t | z, s_t) - log p(y_t | s_t)

Its mean over samples is -KL(p || q) at s_t, the reverse KL, so the policy gradient with d_t as the advantage of that
token alone descends the KL at the states that the policy visits; how a token changes later states is not credited (a
discount of 0), as in on-policy distillation (Agarwal et al., arXiv 2306.13649; Lu et al., Thinking Machines 2025) and
in the sampled-token form of on-policy self-distillation (OPSD, arXiv 2601.18734). The teacher is

- another model with the same tokenizer (`teacher_model_name_or_path`), or
- the policy itself, as it is before each update, which reads privileged information z (`teacher_privileged`).

Tokens of the environment have no d_t: the policy did not choose them. As a reward (`distillation_placement="reward"`),
weight * d_t is instead part of the returns, like a KL to a reference model: then it is credited to earlier tokens too,
and PPO's critic learns it. DGPO (arXiv 2508.20324) does so for rollouts with a wrong answer only
(`distillation_failures_only`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.integrations.deepspeed import is_deepspeed_zero3_enabled

from agent_r1_gym.errors import ConfigurationError
from agent_r1_gym.run.record import Trajectory
from trainers import trl_internals
from trainers.algorithms.credit import Credit
from trainers.config.agent import AgentConfig


def teacher_log_ratios(teacher_logps: Tensor, logps: Tensor, mask: Tensor) -> Tensor:
    """Return d_t = log q - log p where `mask` is True, 0 elsewhere; all are (B, T)."""
    return torch.where(mask, teacher_logps - logps, 0.0)


def add_to_advantages(credit: Credit, log_ratios: Tensor, *, weight: float) -> Credit:
    """Add weight * d_t to the advantages of credited tokens."""
    extra = torch.where(credit.credited, weight * log_ratios.to(credit.advantages), 0.0)
    return replace(credit, advantages=credit.advantages + extra)


def distilled_rows(records: Sequence[Trajectory], *, failures_only: bool) -> Tensor:
    """Return (B,) bool: the rollouts whose tokens the teacher scores.

    Args:
        records: the rollouts.
        failures_only: only those with a wrong answer or none; in an environment that scores no answers, those whose
            outcome reward is not above 0.
    """

    def failed(record: Trajectory) -> bool:
        return record.outcome_reward <= 0 if record.solved is None else not record.solved

    return torch.tensor([not failures_only or failed(record) for record in records], dtype=torch.bool)


def load_teacher(name: str, args: AgentConfig, *, tokenizer: Any, device: Any) -> Any:
    """Load another model as the teacher: frozen, whole on every process, and scoring as the policy does.

    Args:
        name: folder or hub id.
        args: the temperature of log-probs, and how TRL loads models.
        tokenizer: the policy's.
        device: the policy's.

    Raises:
        ConfigurationError: its tokenizer is another one, or DeepSpeed ZeRO-3 is on.
    """
    if is_deepspeed_zero3_enabled():  # type: ignore[no-untyped-call]
        raise ConfigurationError(
            "A teacher is kept whole on every process, which DeepSpeed ZeRO-3 forbids: use ZeRO-2, DDP or FSDP."
        )
    own_code = bool(args.trust_remote_code)
    check_same_tokenizer(name, AutoTokenizer.from_pretrained(name, trust_remote_code=own_code), tokenizer)
    model = AutoModelForCausalLM.from_pretrained(
        name,
        dtype=torch.bfloat16 if args.bf16 else torch.float32,
        trust_remote_code=own_code,
    )
    model = model.to(device).eval().requires_grad_(False)
    trl_internals.prepare_logprobs(model, args)
    return model


def check_same_tokenizer(name: str, teacher: Any, student: Any) -> None:
    """Refuse a teacher that would read the policy's token ids as other text.

    Raises:
        ConfigurationError: the vocabularies differ; the message names an entry.
    """
    theirs, ours = teacher.get_vocab(), student.get_vocab()
    different = sorted(token for token in theirs.keys() | ours.keys() if theirs.get(token) != ours.get(token))
    if different:
        token = different[0]
        raise ConfigurationError(
            f"teacher_model_name_or_path={name!r} has another tokenizer than the policy: {len(different)} of "
            f"{len(ours)} tokens differ, such as {token!r} (id {theirs.get(token)} there, {ours.get(token)} here). A "
            "teacher scores the policy's token ids, so choose a model of the same family."
        )
