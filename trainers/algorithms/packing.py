"""How rollouts are laid out for a forward pass: no padding, no log-prob computed for nothing, a group's prompt once.

TRL pads a prompt at the left and what follows at the right, to the longest of the whole generation batch, and computes
log-probs for every token behind the prompt, those of tools too. Here only tokens that the loss sees get one, and one of
two layouts holds what the model has to see:

- rows: one sequence per context, trimmed, those of like length together (any model);
- packed: the contexts of several rollouts concatenated in a single row, each attending to itself alone; rollouts
  with one prompt share its keys and values (models whose attention can be exchanged, see `supports_packing`).

Both give the log-probs of TRL's layout, up to rounding.

Shapes: B trajectories, P prompt tokens, T tokens behind them, W = P + T columns, N tokens in a packed row.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.attention.bias import causal_lower_right
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import repeat_kv, sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from agent_r1_gym.errors import ConfigurationError

IGNORE_INDEX = -100
PACKED_ATTENTION = "agent_r1_segments"
"""Name of the attention function in a model's configuration."""
NO_MASK = torch.Size((1, 1, 1, 1))


@contextmanager
def without_dropout(model: torch.nn.Module) -> Iterator[None]:
    """While open, a model without gradients drops nothing out, like engines and the reference model."""
    if torch.is_grad_enabled() or not model.training:
        yield
        return
    model.eval()
    try:
        yield
    finally:
        model.train()


@dataclass(frozen=True, eq=False)
class Layout:
    """Input of one forward pass, and where its output belongs.

    Attributes:
        inputs: arguments of the model.
        labels: the token that each position has to predict, `IGNORE_INDEX` where none is needed.
        included: (B, W) bool: the tokens that are in the input.
        positions: where they stand there, in row-major order; indices of the input's dimensions.
        informed: the same trajectories as a teacher reads them; None: there is no teacher in this pass.
    """

    inputs: dict[str, Any]
    labels: Tensor
    included: Tensor
    positions: tuple[Tensor, ...]
    informed: Layout | None = None

    def forward(self, model: Any, *, input_ids: Tensor, attention_mask: Tensor, labels: Tensor, **options: Any) -> Any:
        """Run a model; what TRL made of `inputs` is of no use."""
        return model(**self.inputs, shift_labels=self.labels, **options)

    def to_rows(self, outputs: Tensor) -> Tensor:
        """Map outputs to (B, W): that of each token, found at the position before it; 0 if that is not included."""
        laid = outputs.new_zeros(self.included.shape)
        laid[self.included] = outputs[self.positions]
        return torch.nn.functional.pad(laid[:, :-1], (1, 0))

    def predicting(self) -> Tensor:
        """Return (N,): positions with a label in the flattened input, by row and column of the tokens they predict."""
        numbers = torch.arange(self.labels.numel(), device=self.labels.device).view_as(self.labels)
        return self.to_rows(numbers)[self.to_rows(self.labels != IGNORE_INDEX)]


class Prefixes(NamedTuple):
    """Tokens that a pass reads in front of each context of a trajectory, and that nothing else contains.

    Attributes:
        ids: (B, Q) long, padded at the right.
        lengths: (B,) long, how many tokens each trajectory has.
        bos_token_id: a context that begins with this token keeps it in front; None: no context has one.
    """

    ids: Tensor
    lengths: Tensor
    bos_token_id: int | None = None

    @classmethod
    def none(cls, number: int, *, device: Any) -> Prefixes:
        """Empty prefixes of `number` trajectories."""
        nothing = torch.zeros((number, 1), dtype=torch.long, device=device)
        return cls(nothing, nothing[:, 0])

    def select(self, rows: Tensor) -> Prefixes:
        """Select the prefixes of some trajectories."""
        return self._replace(ids=self.ids[rows], lengths=self.lengths[rows])


def compute_logprobs(
    forward: Callable[[Layout], tuple[Sequence[Tensor], Tensor | None]],
    input_ids: Tensor,
    attention_mask: Tensor,
    *,
    needs_logprobs: Tensor,
    context_ids: Tensor | None,
    rows: int,
    packed: bool,
    prefixes: Prefixes | None = None,
    informed: Prefixes | None = None,
    kept: Tensor | None = None,
) -> tuple[list[Tensor], Tensor | None]:
    """Compute log-probs of trajectories and what comes with them, `rows` of them in a pass, like ones together.

    Args:
        forward: runs the model; returns values in the shape of `Layout.labels`, log-probs first, and a scalar, which
            may be None.
        input_ids: (B, W), padded anywhere but within a context.
        attention_mask: (B, W), 0 for padding.
        needs_logprobs: (B, T) bool: the tokens whose log-probs are wanted.
        context_ids: (B, T) long, see `batch.context_ids`; None: one context each.
        rows: trajectories in a pass; all processes make equally many passes.
        packed: which layout.
        prefixes: of the trajectories; needs rows, since every context gets its own.
        informed: what a teacher reads in front of each context in the same pass, see `Layout.informed`.
        kept: (B,) bool: the trajectories to run, at least one per pass, see `rows_with_advantage`; None: all.

    Returns:
        The values (B, T), 0 for all other tokens and trajectories, and the mean of the scalars.
    """
    width = needs_logprobs.size(1)
    full_mask = torch.nn.functional.pad(needs_logprobs, (input_ids.size(1) - width, 0))
    contexts = None if context_ids is None else torch.nn.functional.pad(context_ids, (input_ids.size(1) - width, 0))
    order = similarity_order(input_ids[:, :-width], attention_mask, packed=packed)
    chunks = torch.split(order, rows)
    if kept is not None:
        order = order[kept[order]]
        chunks = torch.tensor_split(order, len(chunks))
    parts, aux = [], []
    for chunk in chunks:
        own = None if contexts is None else contexts[chunk]
        part = input_ids[chunk], attention_mask[chunk], full_mask[chunk], own
        if packed:
            layout = packed_layout(*part, prompt=input_ids.size(1) - width)
        else:
            layout = rows_layout(*part, None if prefixes is None else prefixes.select(chunk))
        if informed is not None:
            layout = replace(layout, informed=rows_layout(*part, informed.select(chunk)))
        values, loss = forward(layout)
        parts.append([layout.to_rows(each) for each in values])
        aux.append(loss)
    results = []
    for pieces in zip(*parts, strict=True):
        found = torch.cat(pieces)[:, -width:]
        results.append(found.new_zeros(needs_logprobs.shape).index_put((order,), found))
    losses = [loss for loss in aux if loss is not None]
    return results, torch.stack(losses).mean() if losses else None


def rows_with_advantage(advantages: Tensor, mask: Tensor, *, lengths: Tensor, at_least: int) -> Tensor:
    """Return (B,) bool: trajectories with an advantage in the loss, and the shortest others if these are too few.

    All processes make equally many passes, and each pass needs a trajectory.

    Args:
        advantages: (B, T).
        mask: (B, T), 1 for each token that the loss sees.
        lengths: (B,), of the trajectories.
        at_least: number of passes.
    """
    kept = ((advantages != 0) & mask.bool()).any(1)
    missing = at_least - int(kept.sum())
    if missing > 0:
        kept[torch.where(kept, lengths.max() + 1, lengths).argsort(stable=True)[:missing]] = True
    return kept


def can_reorder_micro_batches(args: Any) -> bool:
    """Whether the update is independent of how rollouts of an optimiser step are divided into micro-batches.

    bnpo, the entropy bonus and quantiles of entropies are taken over a micro-batch; and where batches of rollouts are
    no whole number of optimiser steps, a micro-batch would be moved into another step.
    """
    bonus = args.entropy_coef or args.use_adaptive_entropy
    alone = args.loss_type == "bnpo" or bonus or args.top_entropy_quantile < 1
    steps = args.steps_per_generation
    return not alone and steps > 1 and steps % args.gradient_accumulation_steps == 0


def reorder_micro_batches(batches: Sequence[Mapping[str, Any]], args: Any, *, packed: bool) -> list[dict[str, Any]]:
    """Regroup similar rollouts into the same micro-batch, within their optimiser step.

    Args:
        batches: TRL's micro-batches: tensors and lists of equally many rows, and scalars.
        args: whose `gradient_accumulation_steps` micro-batches are an optimiser step.
        packed: see `similarity_order`.
    """
    micro_batches: list[dict[str, Any]] = []
    per_step = args.gradient_accumulation_steps
    for start in range(0, len(batches), per_step):
        step = batches[start : start + per_step]
        prompts, masks = (torch.cat([batch[name] for batch in step]) for name in ("prompt_ids", "prompt_mask"))
        full_mask = torch.cat([masks, torch.cat([batch["completion_mask"] for batch in step])], dim=1)
        order = similarity_order(prompts, full_mask, packed=packed)
        micro_batches += [{name: _part(step, name, rows) for name in step[0]} for rows in order.chunk(len(step))]
    return micro_batches


def _part(step: Sequence[Mapping[str, Any]], name: str, rows: Tensor) -> Any:
    """Select rows across all micro-batches; values without rows stay as they are."""
    first = step[0][name]
    if isinstance(first, Tensor) and first.ndim:
        return torch.cat([batch[name] for batch in step])[rows]
    if isinstance(first, list):
        every = [value for batch in step for value in batch[name]]
        return [every[row] for row in rows.tolist()]
    return first


def similarity_order(prompts: Tensor, attention_mask: Tensor, *, packed: bool) -> Tensor:
    """Order the rows (B,) so that those of one prompt (packed), or of similar length, are adjacent.

    Args:
        prompts: (B, P), padded at the left.
        attention_mask: (B, W).
        packed: which.
    """
    lengths = attention_mask.sum(1)
    if not packed:
        return lengths.argsort(descending=True, stable=True)
    same = torch.unique(prompts * attention_mask[:, : prompts.size(1)], dim=0, return_inverse=True)[1]
    by_length = lengths.argsort(descending=True, stable=True)
    return by_length[same[by_length].argsort(stable=True)]


def _labels(input_ids: Tensor, real: Tensor, needs_logprobs: Tensor, contexts: Tensor | None) -> Tensor:
    """Return (B, W): for each token the next one of its context if that needs a log-prob, else `IGNORE_INDEX`."""
    follows = real[:, :-1] & real[:, 1:] & needs_logprobs[:, 1:]
    if contexts is not None:
        follows &= contexts[:, :-1] == contexts[:, 1:]
    labels = torch.full_like(input_ids, IGNORE_INDEX)
    labels[:, :-1] = torch.where(follows, input_ids[:, 1:], IGNORE_INDEX)
    return labels


def _sequences(real: Tensor, contexts: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Return for each real token, in row-major order, its sequence and column, and the lengths of the sequences."""
    rows = torch.arange(len(real), device=real.device)[:, None].expand_as(real)
    named = rows if contexts is None else rows * (contexts.max() + 1) + contexts
    _, sequence, lengths = torch.unique_consecutive(named[real], return_inverse=True, return_counts=True)
    before = lengths.cumsum(0) - lengths
    column = torch.arange(len(sequence), device=real.device) - before[sequence]
    return sequence, column, lengths


def rows_layout(
    input_ids: Tensor,
    attention_mask: Tensor,
    needs_logprobs: Tensor,
    contexts: Tensor | None,
    prefixes: Prefixes | None = None,
) -> Layout:
    """Return one sequence per context, padded at the right to the longest; `prefixes` stand in front of each."""
    real = attention_mask.bool()
    sequence, column, lengths = _sequences(real, contexts)
    if prefixes is not None:
        first = column == 0  # of each sequence
        owners = torch.arange(len(real), device=real.device)[:, None].expand_as(real)[real][first]
        inserted, starts = prefixes.lengths[owners], torch.zeros_like(owners)
        if prefixes.bos_token_id is not None:
            starts = (input_ids[real][first] == prefixes.bos_token_id).long()
        column = column + torch.where(column >= starts[sequence], inserted[sequence], 0)
        lengths = lengths + inserted
    shape = len(lengths), int(lengths.max())
    ids, mask = input_ids.new_zeros(shape), attention_mask.new_zeros(shape)
    labels = torch.full_like(ids, IGNORE_INDEX)
    ids[sequence, column], mask[sequence, column] = input_ids[real], 1
    labels[sequence, column] = _labels(input_ids, real, needs_logprobs, contexts)[real]
    if prefixes is not None:
        places = torch.arange(prefixes.ids.size(1), device=real.device)
        number, place = (places < inserted[:, None]).nonzero(as_tuple=True)
        ids[number, starts[number] + place] = prefixes.ids[owners[number], place]
        mask[number, starts[number] + place] = 1
    return Layout({"input_ids": ids, "attention_mask": mask}, labels, real, (sequence, column))


def packed_layout(
    input_ids: Tensor, attention_mask: Tensor, needs_logprobs: Tensor, contexts: Tensor | None, *, prompt: int
) -> Layout:
    """Concatenate all contexts in one row; a row whose prompt is that of the row before it uses that one's.

    Its branch begins with the last token of the prompt: that one predicts another token in each row.
    """
    real = attention_mask.bool()
    labels = _labels(input_ids, real, needs_logprobs, contexts)
    sequence, column, _ = _sequences(real, contexts)
    columns = torch.zeros_like(input_ids)
    columns[real] = column
    alike = ((input_ids[1:, :prompt] == input_ids[:-1, :prompt]) | ~real[1:, :prompt]).all(1)
    alike &= (real[1:, :prompt] == real[:-1, :prompt]).all(1)
    shares_prompt = torch.nn.functional.pad(alike, (1, 0))
    included = real.clone()
    included[:, : max(prompt - 1, 0)] &= ~shares_prompt[:, None]
    flat = torch.zeros_like(input_ids)
    flat[real] = sequence
    _, lengths = torch.unique_consecutive(flat[included], return_counts=True)
    # The number of each row's first sequence.
    firsts = flat[torch.arange(len(flat), device=flat.device), real.int().argmax(1)].tolist()
    segments = _segments(lengths.tolist(), firsts, shares_prompt.tolist(), real[:, :prompt].sum(1).tolist())
    position = torch.arange(int(included.sum()), device=included.device)
    inputs = {
        "input_ids": input_ids[included][None],
        "position_ids": columns[included][None],
        # Of four dimensions, so that transformers makes no mask; `packed_attention_forward` does not read it.
        "attention_mask": torch.zeros(NO_MASK, dtype=torch.bool, device=included.device),
        "segments": segments,
    }
    return Layout(inputs, labels[included][None], included, (torch.zeros_like(position), position))


def _segments(
    lengths: Sequence[int], firsts: Sequence[int], shares_prompt: Sequence[bool], prompts: Sequence[int]
) -> tuple[Segment, ...]:
    """Find the segments of a packed row whose sequences have these lengths there.

    Args:
        lengths: kept tokens of each sequence.
        firsts: number of the first sequence of each row, which holds its prompt.
        shares_prompt: whether that continues the prompt of the row before.
        prompts: tokens of each row's prompt.
    """
    rows = {number: row for row, number in enumerate(firsts)}
    segments: list[Segment] = []
    start = owner = 0
    for number, length in enumerate(lengths):
        row = rows.get(number)
        end = start + length
        if row is not None and shares_prompt[row]:
            segments.append(Segment(start, end, owner, owner + prompts[row] - 1))
        else:
            segments.append(Segment(start, end))
            owner = start if row is not None else owner
        start = end
    return tuple(segments)


def rows_per_pass(batch: int, device: torch.device) -> int:
    """Number of rows per pass: on a CPU few, so that they fit its caches."""
    return min(batch, 8) if device.type == "cpu" else batch


class Segment(NamedTuple):
    """A part of a packed row that attends to itself, causally, and to all of a prefix that stands before it.

    Attributes:
        start: its first token.
        end: where the next one begins.
        prefix: first token of the prefix.
        prefix_end: where that ends; `prefix` if there is none.
    """

    start: int
    end: int
    prefix: int = 0
    prefix_end: int = 0


def packed_attention_forward(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    segments: Sequence[Segment] | None = None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Attention as transformers calls it: that of "sdpa" without `segments`, else segment by segment."""
    if segments is None and attention_mask is not None and attention_mask.shape == NO_MASK and query.size(2) > 1:
        raise ConfigurationError(
            f"{type(module).__name__} was not handed the segments of packed rollouts: set update_layout=rows."
        )
    if segments is None:
        output, _ = sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **options
        )
        return output, None
    groups, kind = getattr(module, "num_key_value_groups", 1), query.device.type
    if torch.is_autocast_enabled(kind):  # which rotary positions undo, and a mask that is not a tensor gets around
        query, key, value = (tensor.to(torch.get_autocast_dtype(kind)) for tensor in (query, key, value))
    key, value = repeat_kv(key, groups), repeat_kv(value, groups)
    parts = [_one(query, key, value, segment, dropout, scaling) for segment in segments]
    return torch.cat(parts, dim=2).transpose(1, 2).contiguous(), None


def _one(query: Tensor, key: Tensor, value: Tensor, segment: Segment, dropout: float, scaling: float | None) -> Tensor:
    own, prefix = slice(segment.start, segment.end), slice(segment.prefix, segment.prefix_end)
    keys, values, mask = key[:, :, own], value[:, :, own], None
    if segment.prefix_end > segment.prefix:
        keys = torch.cat([key[:, :, prefix], keys], dim=2)
        values = torch.cat([value[:, :, prefix], values], dim=2)
        mask = causal_lower_right(segment.end - segment.start, keys.size(2))
    return torch.nn.functional.scaled_dot_product_attention(
        query[:, :, own], keys, values, attn_mask=mask, dropout_p=dropout, is_causal=mask is None, scale=scaling
    )


def supports_packing(model: Any) -> bool:
    """Whether `packed_attention_forward` can replace a model's attention, with every layer attending to all before.

    Args:
        model: an unwrapped model, with or without an adapter.
    """
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    config = base.config.get_text_config()
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    return (
        getattr(base, "_supports_attention_backend", False)
        and base.config._attn_implementation in ("sdpa", PACKED_ATTENTION)
        and kinds == {"full_attention"}
        and not getattr(config, "sliding_window", None)
        and not getattr(config, "num_experts", None)
        and not getattr(config, "num_local_experts", None)
        and base.config is config  # no images
        and _forwards_kwargs(base)
    )


def _forwards_kwargs(base: Any) -> bool:
    """Whether a model passes unknown keyword arguments on to its attention: otherwise the segments would be lost.

    Tried on one layer without weights: signatures do not show it.
    """
    received: list[bool] = []

    def record_segments(
        _module: Any, query: Tensor, _key: Tensor, value: Tensor, _mask: Any, *, segments: Any = None, **_options: Any
    ) -> tuple[Tensor, None]:
        received.append(segments is not None)
        return query.new_zeros(*query.shape[:-1], value.size(-1)).transpose(1, 2), None

    name = f"{PACKED_ATTENTION}_asked"
    AttentionInterface.register(name, record_segments)
    AttentionMaskInterface.register(name, sdpa_mask)
    config = copy.deepcopy(base.config)
    config.num_hidden_layers = 1
    if getattr(config, "layer_types", None):
        config.layer_types = config.layer_types[:1]
    try:
        with torch.device("meta"), torch.no_grad():
            layer = type(base)(config)
            layer.set_attn_implementation(name)
            ids = torch.zeros((1, 2), dtype=torch.long)
            mask = torch.zeros(NO_MASK, dtype=torch.bool)
            options = {"attention_mask": mask, "position_ids": ids, "segments": (Segment(0, 2),), "use_cache": False}
            layer(input_ids=ids, **options)
    except Exception:  # a custom model may raise anything on arguments that it does not know
        return False
    return bool(received) and all(received)


def install_packed_attention(model: Any) -> None:
    """Replace a model's attention by `packed_attention_forward`, permanently: recomputed layers look it up again."""
    AttentionInterface.register(PACKED_ATTENTION, packed_attention_forward)
    AttentionMaskInterface.register(PACKED_ATTENTION, sdpa_mask)
    model.set_attn_implementation(PACKED_ATTENTION)


def setup_packing(layout: str, *models: Any, device: torch.device) -> bool:
    """Decide whether rollouts are packed, and if so replace the attention of the models.

    Args:
        layout: "auto" (packed on a CPU, where the models take it), "packed" or "rows".
        models: policy and reference; None where there is none.
        device: of the policy.

    Raises:
        ConfigurationError: they should be packed and cannot.
    """
    there = [getattr(model, "module", model) for model in models if model is not None]  # DeepSpeed wraps the reference
    # A packed row calls attention once per rollout and layer: on an H200, updates of a model of 135M parameters took
    # three to eight times as long as on rows (128 rollouts of 350 tokens, 300 of them prompts that 8 rollouts share).
    if layout == "rows" or (layout == "auto" and device.type != "cpu"):
        return False
    if not all(map(supports_packing, there)):
        if layout == "packed":
            raise ConfigurationError(
                "update_layout=packed needs a model of full attention through 'sdpa', without experts and images; this "
                "one is not. Leave it out: rows are taken then."
            )
        return False
    for model in there:
        install_packed_attention(model)
    return True
