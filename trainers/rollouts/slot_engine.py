"""SlotEngine, the default engine (`engine="cached"`): samples the tokens of all rollouts with a transformers model.

Every episode keeps its KV cache from turn to turn. Evaluations of local models sample with it too.
"""

from __future__ import annotations

import random
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from peft import LoraConfig
from torch import Tensor

from agent_r1_gym.errors import ConfigurationError
from agent_r1_gym.run.engines import NOT_YET, POLL_SECONDS
from agent_r1_gym.run.token_session import NewContext, NextTokens, TokenSession, context_limit, end_context_full
from trainers.algorithms.packing import PACKED_ATTENTION
from trainers.rollouts.cache import SlotCache, as_slot_index, to_device_async
from trainers.rollouts.cuda_graphs import DecodingGraphs
from trainers.rollouts.request_engine import SamplingOptions, session_named

MAX_SLOTS = 128
"""Episodes that decode side by side on one device; more wait for a free slot."""
_MIN_SHARED_TOKENS = 64
_LEAST_BATCH, _LEAST_LENGTH = 8, 64
"""Sizes of CUDA graphs are powers of two, from these on."""
_PLAIN = (torch.float32, torch.bfloat16, torch.float16)


@dataclass(slots=True, eq=False)
class _Slot:
    """An episode in slot `slot_index`: `length` tokens, `prompt` first, are cached; `pending` ones are fed next."""

    session: TokenSession
    number: int
    slot_index: int
    rng: random.Random
    options: SamplingOptions
    prompt: tuple[int, ...]
    pending: list[int]
    length: int = 0
    budget: int = 0
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    future: Future[NextTokens] | None = None


class SlotEngine:
    """Decodes with a transformers causal language model, KV caches kept across turns, no barrier between episodes.

    While the tools of one episode run (a Future), the others continue; the slot of a finished episode is given to the
    next session, which is pulled from the iterator only then. Slots are not padded: each has its own length. Equal
    prompts of live sessions (the rollouts of one group) are prefilled once. The cache lives as long as `run`.

    Randomness: `generator` draws one seed per session, in the order of the iterator, unless the session has an
    attribute `seed`; a session's tokens depend on its seed and its own context only, not on slots, other sessions or
    the speed of tools (but for rounding: floating-point sums may differ in the last bit with the size of the batch).
    Reseed with `engine.generator.manual_seed(...)`. A session's `sampling`, if it has one, overrides `options`.

    Every rank needs the whole weights: under FSDP or ZeRO-3 gather them around `run`.

    Args:
        model: decoder-only model that takes `position_ids` (rotary or learned), attention "sdpa" or "eager"; may be
            wrapped by PEFT, not by DDP (`accelerator.unwrap_model`).
        options: how to sample.
        slots: maximum number of episodes at the same time.
        max_length: maximum number of tokens of an episode, prompt included.
        pad_token_id: fills inputs; never attended.
        prefill_tokens: maximum number of tokens, padding included, of a forward pass that is not decoding.
        enforce_eager: launch every kernel of a decoding pass from Python, without CUDA graphs; as in vLLM.

    Attributes:
        sampled_tokens: number of tokens so far, for progress.

    Raises:
        ConfigurationError: an argument or the model does not fit.
    """

    def __init__(
        self,
        model: Any,
        options: SamplingOptions,
        *,
        slots: int,
        max_length: int,
        pad_token_id: int = 0,
        prefill_tokens: int = 4096,
        enforce_eager: bool = False,
    ) -> None:
        for name, number in (("slots", slots), ("max_length", max_length), ("prefill_tokens", prefill_tokens)):
            if number < 1:
                raise ConfigurationError(f"SlotEngine needs {name} of at least 1, got {number}.")
        _check_model(model, max_length)
        self.model, self.options = model, options
        self.slots, self.max_length, self.prefill_tokens = slots, max_length, prefill_tokens
        self.pad_token_id = pad_token_id
        self.cuda_graphs = not enforce_eager and model.device.type == "cuda"
        # A mixture of experts that was saved with this flag on would compute its training loss, of 2-D masks.
        routed = hasattr(model.config.get_text_config(), "output_router_logits")
        self.extra_inputs = {"output_router_logits": False} if routed else {}
        self.generator = torch.Generator().manual_seed(options.seed)
        self.sampled_tokens = 0

    def draw_seed(self) -> int:
        """Draw the seed of a session."""
        return int(torch.randint(2**62, (), generator=self.generator))

    def close(self) -> None:
        """Free what the engine owns: nothing, the model is its owner's."""

    def run(self, sessions: Iterable[TokenSession]) -> None:
        """Play every session to its end.

        Raises:
            ConfigurationError: the weights are sharded, a prompt is empty, a session continues beyond `max_length`.
            Exception: whatever a session, its Future or the iterator raises, with a note that names the session.
        """
        if any(parameter.numel() == 0 or hasattr(parameter, "to_local") for parameter in self.model.parameters()):
            raise ConfigurationError(
                "engine=cached needs whole weights, but the model's are sharded: gather them around run(), or take "
                "--engine trl."
            )
        was_training = self.model.training
        self.model.eval()
        play = _EngineRun(self, iter(sessions))
        try:
            with torch.no_grad():
                play.loop()
        finally:
            self.model.train(was_training)
            for slot in play.waiting_on_tools:
                slot.future.cancel()  # type: ignore[union-attr]


def _find_donor(slot: _Slot, donors: Mapping[tuple[int, ...], _Slot]) -> tuple[_Slot | None, int]:
    """Find a slot whose prompt begins like that of `slot`, and how many tokens they share; the last is always fed."""
    prompt = slot.prompt
    if prompt in donors and len(prompt) > 1:
        return donors[prompt], len(prompt) - 1
    # Short prefixes are not worth a pass that waits for another slot.
    least = max(_MIN_SHARED_TOKENS, len(prompt) // 4)
    for other, donor in donors.items():
        if len(prompt) > least and other[:least] == prompt[:least]:
            lengths = range(least + 1, min(len(prompt) - 1, len(other)) + 1)
            return donor, least + bisect_left(lengths, True, key=lambda n: other[:n] != prompt[:n])
    return None, 0


class _EngineRun:
    """One run of a `SlotEngine`.

    A live slot is in exactly one of three lists: `waiting` (for its prefill), `decoding`, `waiting_on_tools` (a tool
    runs).
    """

    def __init__(self, engine: SlotEngine, sessions: Iterator[TokenSession]) -> None:
        self.engine, self.sessions = engine, sessions
        config = engine.model.config
        self.cache = SlotCache(config.get_text_config().num_hidden_layers, engine.slots, max_length=engine.max_length)
        self.model_pass = _ModelPass(engine.model, self.cache, engine.extra_inputs)
        self.graphs = None
        if engine.cuda_graphs:
            view = self.cache.view
            self.graphs = DecodingGraphs(self.model_pass.decode, model=engine.model, capacity=lambda: view.capacity)
        self.occupants: list[_Slot | None] = [None] * engine.slots
        self.count = 0
        self.exhausted = self.more_to_come = False
        self.waiting: list[_Slot] = []
        self.decoding: list[_Slot] = []
        self.waiting_on_tools: list[_Slot] = []

    def loop(self) -> None:
        while True:
            self._admit()
            self._collect()
            # A pass over few slots costs nearly as much as one over many (1/2 to 1/8 measured: within 10 %).
            if self.waiting and 4 * len(self.waiting) >= len(self.decoding):
                self._prefill()
            elif self.decoding:
                self._decode()
            elif self.waiting_on_tools:
                futures = [slot.future for slot in self.waiting_on_tools if slot.future]
                wait(futures, timeout=POLL_SECONDS if self.more_to_come else None, return_when=FIRST_COMPLETED)
            elif self.exhausted:
                return

    def _admit(self) -> None:
        for slot_index, owner in enumerate(self.occupants):
            if owner is not None:
                continue
            session = None if self.exhausted else next(self.sessions, None)
            self.more_to_come = session is NOT_YET
            if session is None or self.more_to_come:
                self.exhausted = session is None
                return
            prompt = tuple(session.prompt_ids)
            if not prompt:
                raise ConfigurationError(f"prompt_ids of session {self.count} is empty, expected at least one token.")
            seed = getattr(session, "seed", None)
            seed = self.engine.draw_seed() if seed is None else seed
            options = replace(self.engine.options, **getattr(session, "sampling", {}))
            slot = _Slot(session, self.count, slot_index, random.Random(seed), options, prompt, [])
            self.occupants[slot_index] = slot
            self.count += 1
            self._begin_turn(slot, list(prompt))

    def _collect(self) -> None:
        if not self.waiting_on_tools:
            return
        ready = [slot for slot in self.waiting_on_tools if slot.future and slot.future.done()]
        self.waiting_on_tools = [slot for slot in self.waiting_on_tools if slot not in ready]
        for slot in ready:
            with session_named(slot.number):
                reply = slot.future.result()  # type: ignore[union-attr]
            slot.future = None
            self._begin_turn(slot, reply)

    def _begin_turn(self, slot: _Slot, answer: NextTokens) -> None:
        if answer is None:
            self.occupants[slot.slot_index] = None
            return
        longest = context_limit(slot.session, self.engine.max_length)
        if isinstance(answer, NewContext):  # keeps of the cache what both contexts begin with
            slot.length = answer.common_prefix_length(slot.prompt[: slot.length])
            slot.prompt, slot.pending, answer = tuple(answer.ids), [], answer.ids[slot.length :]
        slot.pending += answer
        remaining = longest - slot.length - len(slot.pending)
        slot.budget = min(remaining, slot.options.max_new_tokens)
        if remaining > 0:
            self.waiting.append(slot)
            return
        with session_named(slot.number):
            end_context_full(slot.session, longest)
        self.occupants[slot.slot_index] = None

    def _finish_turn(self, slot: _Slot, *, stopped: bool) -> None:
        ids, logprobs = slot.ids, slot.logprobs
        slot.ids, slot.logprobs = [], []
        with session_named(slot.number):
            reply = slot.session.finish_turn(ids, logprobs, stopped)
        if isinstance(reply, Future):
            slot.future = reply
            self.waiting_on_tools.append(slot)
        else:
            self._begin_turn(slot, reply)

    def _prefill(self) -> None:
        blocked = self._share_prompts()
        group = sorted((s for s in self.waiting if s not in blocked), key=lambda s: len(s.pending), reverse=True)
        width = min(len(group[0].pending), self.engine.prefill_tokens)
        group = sorted(group[: max(1, self.engine.prefill_tokens // width)], key=lambda slot: slot.slot_index)
        slot_indices = as_slot_index([slot.slot_index for slot in group], self.engine.model.device)
        logits = self.model_pass(slot_indices, *self._feed(group, width=width))
        ready = [None if slot.pending else slot for slot in group]
        self.waiting = [slot for slot in self.waiting if slot.pending]
        self.decoding += self._sample(ready, logits)

    def _share_prompts(self) -> set[_Slot]:
        """Give waiting slots what another slot has cached of their prompt; returns those that wait for its prefill.

        The copies of a prompt share all of it but the last token, different prompts what they begin with: system turn
        and shots are computed once.
        """
        if all(slot.length for slot in self.waiting):
            return set()
        blocked: set[_Slot] = set()
        copies: list[tuple[_Slot, _Slot]] = []
        filled: set[_Slot] = set()  # by a copy that is yet to come
        donors: dict[tuple[int, ...], _Slot] = {}
        for slot in sorted(filter(None, self.occupants), key=lambda slot: -slot.length):
            if slot.length:
                donors.setdefault(slot.prompt, slot)
                continue
            donor, shared = _find_donor(slot, donors)
            if donor is None:
                donors[slot.prompt] = slot
            elif donor.length >= shared and donor not in filled:
                slot.length, slot.pending = shared, list(slot.prompt[shared:])
                copies.append((donor, slot))
                filled.add(slot)
                donors.setdefault(slot.prompt, slot)
            else:
                blocked.add(slot)
        if copies:
            self._move(
                [donor.slot_index for donor, _ in copies],
                [slot.slot_index for _, slot in copies],
                length=max(slot.length for _, slot in copies),
            )
        return blocked

    def _decode(self) -> None:
        count = self._compact()
        if self.graphs is not None:  # few shapes, for each has a graph of its own
            count = min(max(_power_of_two(count), _LEAST_BATCH), self.engine.slots)
        slots: list[_Slot | None] = [None] * count
        for slot in self.decoding:
            slots[slot.slot_index] = slot
        inputs, length = self._feed(slots, width=1)
        if self.graphs is None:
            logits = self.model_pass.decode(inputs, length)
        else:
            logits = self.graphs(inputs, min(max(_power_of_two(length), _LEAST_LENGTH), self.engine.max_length))
        self.decoding = self._sample(slots, logits)

    def _compact(self) -> int:
        """Move the decoding slots to the front; return their number."""
        count = len(self.decoding)
        movers = [slot for slot in self.decoding if slot.slot_index >= count]
        if not movers:
            return count
        holes = sorted(set(range(count)) - {slot.slot_index for slot in self.decoding})
        slot_indices = [slot.slot_index for slot in movers]
        self._move(
            slot_indices + holes, holes + slot_indices, length=max(slot.length for slot in filter(None, self.occupants))
        )
        for slot, hole in zip(movers, holes, strict=True):
            other = self.occupants[hole]
            self.occupants[slot.slot_index], self.occupants[hole] = other, slot
            if other is not None:
                other.slot_index = slot.slot_index
            slot.slot_index = hole
        return count

    def _move(self, sources: Sequence[int], targets: Sequence[int], *, length: int) -> None:
        # One transfer for all layers: each would make another one of a list.
        moves = to_device_async([sources, targets], self.engine.model.device)
        self.cache.move(moves[0], moves[1], length=length)

    def _feed(self, slots: Sequence[_Slot | None], *, width: int) -> tuple[Tensor, int]:
        """Take up to `width` pending tokens of each slot (None: an idle one).

        Returns:
            A table (n, 2 + width) on the model's device, for each slot its length, the number of new tokens, and these;
            and the length of the longest with its new tokens.
        """
        pad, table, length = [self.engine.pad_token_id] * width, [], 0
        for slot in slots:
            if slot is None:
                table.append([0, 0, *pad])
                continue
            chunk, slot.pending = slot.pending[:width], slot.pending[width:]
            table.append([slot.length, len(chunk), *pad[len(chunk) :], *chunk])
            slot.length += len(chunk)
            length = max(length, slot.length)
        return to_device_async(table, self.engine.model.device), length

    def _sample(self, slots: Sequence[_Slot | None], logits: Tensor) -> list[_Slot]:
        """Give each slot its next token; returns those whose turn continues."""
        draws = [slot.rng.random() if slot else 0.0 for slot in slots]
        uniforms = to_device_async(draws, logits.device, dtype=torch.float64)
        going: list[_Slot] = []
        # The one wait for the device per pass, as long as all sessions sample alike.
        sampled = {
            options: torch.stack([part.double() for part in sample(logits, options, uniforms=uniforms)]).tolist()
            for options in {slot.options for slot in slots if slot}
        }
        self.engine.sampled_tokens += sum(slot is not None for slot in slots)
        for row, slot in enumerate(slots):
            if slot is None:
                continue
            tokens, logprobs = sampled[slot.options]
            token = int(tokens[row])
            slot.ids.append(token)
            slot.logprobs.append(logprobs[row])
            slot.pending = [token]
            stopped = token in slot.options.stop_token_ids
            if stopped or len(slot.ids) == slot.budget or getattr(slot.session, "interrupted", False):
                self._finish_turn(slot, stopped=stopped)
            else:
                going.append(slot)
        return going


class _ModelPass:
    """Passes of a model over slots of its cache; computes on the device alone, as a CUDA graph needs."""

    def __init__(self, model: Any, cache: SlotCache, extra_inputs: Mapping[str, Any]) -> None:
        self._model, self._cache, self._extra_inputs = model, cache, extra_inputs
        self._adds_mask = model.config._attn_implementation == "eager"

    def __call__(self, slot_indices: slice | Tensor, table: Tensor, length: int) -> Tensor:
        """Feed a table of `_EngineRun._feed`, attending to `length` columns; returns the last logits (n, words)."""
        positions, mask = self._cache.prepare_forward(
            slot_indices, table[:, 0], widths=table[:, 1], queries=table.size(1) - 2, length=length
        )
        if self._adds_mask:
            dtype = self._model.dtype
            mask = torch.zeros_like(mask, dtype=dtype).masked_fill(~mask, torch.finfo(dtype).min)
        output = self._model(
            input_ids=table[:, 2:],
            attention_mask=mask,
            position_ids=positions,
            past_key_values=self._cache,
            use_cache=True,
            logits_to_keep=1,
            **self._extra_inputs,
        )
        logits: Tensor = output.logits
        return logits[:, -1]

    def decode(self, table: Tensor, length: int) -> Tensor:
        """Feed one token to each of the first slots."""
        return self(slice(0, len(table)), table, length)


def _power_of_two(least: int) -> int:
    return 1 << (least - 1).bit_length()


def _check_model(model: Any, max_length: int) -> None:
    config = model.config.get_text_config()
    attention, limit = model.config._attn_implementation, getattr(config, "max_position_embeddings", max_length)
    window = getattr(config, "sliding_window", None) or max_length
    kinds = set(getattr(config, "layer_types", None) or ())
    if attention not in ("sdpa", "eager", PACKED_ATTENTION):
        raise ConfigurationError(
            f"engine=cached masks each episode by itself, which attn_implementation={attention!r} cannot do: load the "
            "model with 'sdpa' or 'eager', or take --engine trl."
        )
    # Mistral, Mixtral, Phi-3 and others have a window without declaring which layers do.
    slides = "sliding_attention" in kinds or (not kinds and getattr(config, "use_sliding_window", True))
    if not kinds <= {"full_attention", "sliding_attention"} or (slides and window < max_length):
        raise ConfigurationError(
            f"engine=cached keeps full attention only, but the model has {sorted(kinds) or 'layers'} with a window of "
            f"{window} tokens: keep max_length={max_length} within the window, or take --engine trl."
        )
    if config.model_type == "bloom" or getattr(config, "alibi", False):
        raise ConfigurationError(
            f"engine=cached gives each episode its own positions, which {config.model_type} (ALiBi) does not take: "
            "take --engine trl, or a model with rotary positions."
        )
    if max_length > limit:
        raise ConfigurationError(
            f"max_length={max_length} exceeds the model's max_position_embeddings={limit}: lower it."
        )


def sample(logits: Tensor, options: SamplingOptions, *, uniforms: Tensor) -> tuple[Tensor, Tensor]:
    """Sample one token per row by inverting the distribution function.

    Args:
        logits: (n, vocabulary).
        options: temperature, top_k and top_p are used.
        uniforms: (n,) float64 in [0, 1), the randomness; not used at temperature 0.

    Returns:
        Tokens (n,) and their log-probabilities (n,) in fp32, before top-k and top-p.
    """
    scaled = logits.float() / (options.temperature or 1.0)
    logprobs = scaled.log_softmax(dim=-1)
    if options.temperature == 0:
        tokens = logits.argmax(dim=-1)
    else:
        # Not logprobs.exp(): where probabilities underflow, that takes longer than all the rest here.
        masses, order = scaled.softmax(dim=-1), None
        if options.top_k:
            masses, order = masses.topk(min(options.top_k, masses.shape[-1]), dim=-1)
        elif options.top_p < 1:
            masses, order = masses.sort(dim=-1, descending=True)
        totals = masses.cumsum(dim=-1, dtype=torch.float64)
        if options.top_p < 1:
            masses = masses * (totals - masses < options.top_p * totals[:, -1:])
            totals = masses.cumsum(dim=-1, dtype=torch.float64)
        # Below the total, so that rounding cannot choose a token without mass.
        targets = (uniforms[:, None] * totals[:, -1:]).minimum(totals[:, -1:].nextafter(totals.new_zeros(())))
        # Logits that are NaN lead beyond the last; such a turn is refused by its log-probabilities.
        tokens = torch.searchsorted(totals, targets, right=True)[:, 0].clamp(max=totals.shape[-1] - 1)
        tokens = tokens if order is None else order.gather(-1, tokens[:, None])[:, 0]
    return tokens, logprobs.gather(-1, tokens[:, None])[:, 0]


def rollout_dtype(args: Any, model: Any) -> torch.dtype | None:
    """Return the data type of rollouts; None: that of the model's weights.

    Args:
        args: the training arguments, whose `bf16` and `fp16` decide how the trainer computes.
        model: the unwrapped model. Quantised weights compute in their own way, and adapters other than LoRA may
            keep weights that are not parameters (VeRA).
    """
    adapters = getattr(model, "peft_config", {}).values()
    if getattr(model, "is_quantized", False) or not all(isinstance(adapter, LoraConfig) for adapter in adapters):
        return None
    return torch.bfloat16 if args.bf16 else torch.float16 if args.fp16 else None


@contextmanager
def cast_weights(dtype: torch.dtype | None, model: Any) -> Iterator[None]:
    """Give a model weights of another type while open, and has it compute in that without autocast.

    Autocast keeps its casts for one forward pass only, so that decoding would cast every weight for every token; and
    rotary positions would make the cached keys float32. The weights that are trained stay where optimiser, DDP and
    FSDP2 hold them: the modules are lent copies, tied ones one copy.

    Memory: a copy of each parameter of another type.

    Args:
        dtype: which; None: nothing is done.
        model: the unwrapped model, its weights whole.
    """
    if dtype is None:
        yield
        return
    from trainers import trl_internals  # loads TRL, which evaluations do without

    copies: dict[int, torch.nn.Parameter] = {}
    lent: list[tuple[dict[str, Any], str, torch.nn.Parameter]] = []
    for module in model.modules():
        for name, own in module._parameters.items():
            if own is None or own.dtype == dtype or own.dtype not in _PLAIN:
                continue
            if id(own) not in copies:
                copies[id(own)] = torch.nn.Parameter(own.detach().to(dtype), requires_grad=False)
            lent.append((module._parameters, name, own))
    # Not `parameter.data = copy`: that drops the gradient hooks of DDP, and processes would part without a word.
    for parameters, name, own in lent:
        parameters[name] = copies[id(own)]
    try:
        with trl_internals.without_autocast(model):
            yield
    finally:
        for parameters, name, own in lent:
            parameters[name] = own
