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

What the policy never samples has no d_t, so none of the two teaches a first step that the policy does not know: the
gradient vanishes where the policy is sure, however wrong the teacher finds it. `distillation_placement="loss"` takes
the whole vocabulary at the same states instead, the forward KL

    KL(q || p) = sum_v q(v | z, s_t) (log q(v | z, s_t) - log p(v | s_t))

whose gradient by the logits is p - q (GKD, arXiv 2306.13649, and OPSD over the vocabulary; `distillation_alpha=0` in
TRL). It is added to the loss, as the mean over the tokens in the loss.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.integrations.deepspeed import is_deepspeed_zero3_enabled

from agent_r1_gym.errors import ConfigurationError
from agent_r1_gym.run.record import Trajectory
from trainers import trl_internals
from trainers.algorithms.credit import Credit
from trainers.algorithms.packing import Layout
from trainers.config.agent import AgentConfig


def teacher_log_ratios(teacher_logps: Tensor, logps: Tensor, mask: Tensor) -> Tensor:
    """Return d_t = log q - log p where `mask` is True, 0 elsewhere; all are (B, T)."""
    return torch.where(mask, teacher_logps - logps, 0.0)


def forward_kl(logps: Tensor, teacher_logps: Tensor) -> Tensor:
    """Return KL(q || p) over the vocabulary, in nats, at each of N positions.

    Args:
        logps: (N, V) of the policy p.
        teacher_logps: (N, V) of the teacher q.
    """
    return (teacher_logps.exp() * (teacher_logps - logps)).sum(-1)


def forward_at_labels(model: Any, layout: Layout, *, head: torch.nn.Module, **options: Any) -> Any:
    """Run a model and return its output, with logits (N, V) at `layout.predicting()` and nowhere else.

    Args:
        model: as wrapped for training, or a teacher.
        layout: the input.
        head: the model's output layer.
        **options: further arguments of the model.
    """
    positions = layout.predicting()

    def select(_head: torch.nn.Module, arguments: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return arguments[0].flatten(0, 1)[positions], *arguments[1:]

    hook = head.register_forward_pre_hook(select)
    try:
        return model(**layout.inputs, use_cache=False, **options)
    finally:
        hook.remove()


def distilled_values(logits: Tensor, teacher_logits: Tensor, layout: Layout, *, temperature: float) -> list[Tensor]:
    """Return log-probs of the labels, entropies and `forward_kl`, in the shape of `layout.labels`.

    Few positions at a time, and anew in the backward pass: of the distributions only the logits are kept.

    Args:
        logits: (N, V) of the policy, see `forward_at_labels`.
        teacher_logits: (N, V') of the teacher. What one vocabulary has beyond the other is padding
            (`check_same_tokenizer`), and is left out of the divergence.
        layout: the policy's input.
        temperature: by which the logits are divided, as in sampling.
    """
    positions = layout.predicting()
    labels = layout.labels.flatten()[positions]
    shared = min(logits.size(-1), teacher_logits.size(-1))

    def values(part: Tensor, taught: Tensor, label: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        scaled = part.float() / temperature
        logps, teacher_logps = scaled.log_softmax(-1), (taught[:, :shared].float() / temperature).log_softmax(-1)
        own = logps if shared == part.size(-1) else scaled[:, :shared].log_softmax(-1)
        entropies = -(logps.exp() * logps).sum(-1)
        return logps.gather(1, label[:, None])[:, 0], entropies, forward_kl(own, teacher_logps)

    size = max(1, _CHUNK_NUMBERS // logits.size(-1))
    chunks = zip(*(torch.split(each, size) for each in (logits, teacher_logits, labels)), strict=True)
    parts = zip(
        *(checkpoint(values, *chunk, use_reentrant=False, preserve_rng_state=False) for chunk in chunks), strict=True
    )
    empty = logits.new_zeros(layout.labels.numel(), dtype=torch.float32)
    return [empty.scatter(0, positions, torch.cat(each)).view_as(layout.labels) for each in parts]


_CHUNK_NUMBERS = 2**24
"""Numbers in a chunk of logits: 64 MiB in float32."""


def add_to_advantages(credit: Credit, log_ratios: Tensor, *, weight: float) -> Credit:
    """Add weight * d_t to the advantages of credited tokens."""
    extra = torch.where(credit.credited, weight * log_ratios.to(credit.advantages), 0.0)
    return replace(credit, advantages=credit.advantages + extra)


def distilled_rows(records: Sequence[Trajectory], *, failures_only: bool) -> Tensor:
    """Return (B,) bool: the rollouts whose tokens the teacher scores; none that was lost to a failure.

    Args:
        records: the rollouts.
        failures_only: only those with a wrong answer or none; in an environment that scores no answers, those whose
            outcome reward is not above 0.
    """

    def failed(record: Trajectory) -> bool:
        return record.outcome_reward <= 0 if record.solved is None else not record.solved

    kept = (record.infrastructure_error is None and (not failures_only or failed(record)) for record in records)
    return torch.tensor([*kept], dtype=torch.bool)


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
