"""VLLMBackend: vLLM in this process, driven step by step, so that requests come and go at any time."""

from __future__ import annotations

import copy
import itertools
import os
import shutil
import tempfile
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

import torch
from peft import LoraConfig, PeftModel
from peft.tuners.tuners_utils import BaseTunerLayer
from peft.utils import ModulesToSaveWrapper
from torch import Tensor

from agent_r1_gym.errors import ConfigurationError
from agent_r1_gym.support.packages import install_command
from trainers.rollouts.request_engine import SampledTurn, TurnRequest

_CPU_BLOCK = 32
"""Tokens in a block of the prefix cache on a CPU, where vLLM's default of 128 shares less of an episode's turns."""
_CPU_TOKENS = 4096
"""Tokens that are prefilled at once on a CPU, if no context is longer: vLLM's default there."""
_OWN_WEIGHTS = (True, False, "gaussian", "orthogonal")
"""Ways to begin an adapter that leave the base model as it is; others (PiSSA, OLoRA, ...) change it."""
_NOT_PLAIN = (
    *("use_dora", "modules_to_save", "lora_bias", "rank_pattern", "alpha_pattern"),
    *("trainable_token_indices", "target_parameters", "layer_replication"),
)
"""Options with which an adapter is more than one rank and one scale for all layers: other engines read no more."""


@dataclass(frozen=True, kw_only=True)
class VLLMOptions:
    """How vLLM is started next to a trainer."""

    model: str
    """Folder or hub id of the model that is trained; its weights are replaced by the trainer's."""
    max_length: int
    """Maximum number of tokens of a context."""
    max_num_seqs: int = 256
    """Maximum number of sequences that decode at once; further requests wait."""
    gpu_memory_utilization: float = 0.3
    """Share of the GPU's memory, for vLLM's weights and its cache."""
    dtype: str = "bfloat16"
    """In which vLLM computes."""
    adapter_rank: int = 0
    """Rank of the LoRA adapter that is trained; 0: whole weights are sent."""
    sleep: bool = False
    """Whether vLLM frees its cache, and moves its weights to the CPU, between rollouts."""
    seed: int = 0
    """Of what no request's seed covers."""
    trust_remote_code: bool = False
    """Whether the model's own code may run."""
    revision: str = "main"
    """Revision of the hub's model."""


class VLLMBackend:
    """Answers requests by an engine of vLLM in this process, for this backend only.

    Args:
        options: see `VLLMOptions`.

    Attributes:
        version: number of the latest weights; 0: those that vLLM has loaded itself.
        prompt_tokens: of all requests.
        cached_tokens: how many of those came from the prefix cache.

    Raises:
        ConfigurationError: vLLM is not installed, or does not start.
    """

    def __init__(self, options: VLLMOptions) -> None:
        self.options, self.version = options, 0
        self.prompt_tokens = self.cached_tokens = 0
        self._shared = torch.distributed.is_initialized()
        self._llm = _start(options)
        if self._shared:
            self._keep_process_group()
        self._scratch = tempfile.TemporaryDirectory(prefix="agent-r1-adapters-")
        self._adapter: Any = None
        self._asleep = False
        self._names = itertools.count()
        self._waiting: dict[str, Future[SampledTurn]] = {}

    def submit(self, request: TurnRequest) -> Future[SampledTurn]:
        """See `Backend`."""
        name, future = f"turn-{next(self._names)}", Future[SampledTurn]()
        engine = self._llm.llm_engine
        (prompt,) = engine.renderer.render_cmpl([{"prompt_token_ids": request.context}])
        engine.add_request(name, prompt, _parameters(request), lora_request=self._adapter)
        self._waiting[name] = future
        return future

    def step(self) -> bool:
        """See `Backend`: one decoding step of all requests."""
        if not self._waiting:
            return False
        for output in self._llm.llm_engine.step():
            self.prompt_tokens += len(output.prompt_token_ids)
            self.cached_tokens += output.num_cached_tokens or 0
            self._waiting.pop(output.request_id).set_result(_turn(output.outputs[0]))
        return True

    def abort_all(self) -> None:
        """See `Backend`."""
        if self._waiting:
            self._llm.llm_engine.abort_request(list(self._waiting))
            self._waiting.clear()

    def sync(self, model: Any) -> None:
        """Take over the weights of a trainer's model; nothing may be decoding.

        An adapter that vLLM can apply goes as such, under a new name, number and folder each time: a name that vLLM
        has seen before keeps its old weights in the cache.

        Args:
            model: the unwrapped model, whose weights are whole in this process.
        """
        if self._waiting:
            raise RuntimeError(f"{len(self._waiting)} requests are being decoded: weights change between rollouts.")
        self._wake()
        self.version += 1
        if self.options.adapter_rank:
            from vllm.lora.request import LoRARequest

            old, path = self._adapter, Path(self._scratch.name) / f"v{self.version}"
            save_adapter(model, path)
            self._adapter = LoRARequest(f"v{self.version}", self.version, str(path))
            self._llm.llm_engine.add_lora(self._adapter)
            if old is not None:
                self._llm.llm_engine.remove_lora(old.lora_int_id)
                shutil.rmtree(old.lora_path)
            return
        self._llm.collective_rpc("reload_weights", kwargs={"weights_iterator": merged_parameters(model)})
        self._llm.apply_model(_pack_tied_head)
        self._llm.reset_prefix_cache()

    @contextmanager
    def awake(self) -> Iterator[None]:
        """Keep vLLM awake while it is open; with `VLLMOptions.sleep` it sleeps afterwards."""
        self._wake()
        try:
            yield
        finally:
            if self.options.sleep:
                self.abort_all()
                self._llm.sleep(level=1)
                self._asleep = True

    def close(self) -> None:
        """Stop the engine."""
        self.abort_all()
        client = self._llm.llm_engine.engine_core
        if self._shared:  # vLLM's own end would end the trainer's process group too
            client.engine_core.model_executor.shutdown()
        else:
            client.shutdown()
        self._scratch.cleanup()

    def _keep_process_group(self) -> None:
        """Take back what vLLM (0.32) does when its client is collected: it ends the trainer's process group too."""
        finalizer = getattr(self._llm.llm_engine.engine_core, "_finalizer", None)
        if finalizer is not None:
            finalizer.detach()

    def _wake(self) -> None:
        if self._asleep:
            self._llm.wake_up()
            self._asleep = False


def _start(options: VLLMOptions) -> Any:
    # Read when vllm is imported: weights and adapters change in this process, without pickling.
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    try:
        from vllm import LLM
    except ImportError as error:
        raise ConfigurationError(
            f"engine=vllm needs vLLM, which cannot be imported ({error}): `{install_command('vllm')}`."
        ) from error
    on_gpu = torch.cuda.is_available()
    settings: dict[str, Any] = (
        {"gpu_memory_utilization": options.gpu_memory_utilization} if on_gpu else _on_cpu(options)
    )
    if options.adapter_rank:
        settings |= {"enable_lora": True, "max_lora_rank": supported_lora_rank(options.adapter_rank)}
        settings |= {"max_loras": 2, "max_cpu_loras": 2}
    if torch.distributed.is_initialized() and torch.distributed.get_world_size() > 1:
        settings |= {"distributed_executor_backend": "external_launcher"}
    return LLM(
        model=options.model,
        revision=options.revision,
        trust_remote_code=options.trust_remote_code,
        skip_tokenizer_init=True,
        generation_config="vllm",
        logprobs_mode="processed_logprobs",
        dtype=options.dtype,
        max_model_len=options.max_length,
        max_num_seqs=options.max_num_seqs,
        enable_prefix_caching=True,
        enable_sleep_mode=options.sleep and on_gpu,
        seed=options.seed,
        disable_log_stats=True,
        **settings,
    )


def _on_cpu(options: VLLMOptions) -> dict[str, Any]:
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
    # Of a prompt that is prefilled in parts vLLM winds the seed's generator back, which one of the CPU does not know:
    # the engine dies ("CPU Generator does not use offset", 0.28).
    whole = {"enable_chunked_prefill": False, "max_num_batched_tokens": max(_CPU_TOKENS, options.max_length)}
    return {"enforce_eager": True, "block_size": _CPU_BLOCK, **whole}


def supported_lora_rank(wanted: int) -> int:
    """Return the smallest `max_lora_rank` that vLLM accepts for adapters of a rank."""
    ranks = (8, 16, 32, 64, 128, 256, 320, 512)
    if wanted > ranks[-1]:
        raise ConfigurationError(f"lora_r={wanted}: vLLM applies adapters of rank {ranks[-1]} at most. Lower it.")
    return next(rank for rank in ranks if rank >= wanted)


def _parameters(request: TurnRequest) -> Any:
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    options = request.options
    return SamplingParams(
        temperature=options.temperature,
        top_p=options.top_p,
        top_k=options.top_k,
        max_tokens=request.max_tokens,
        stop_token_ids=list(options.stop_token_ids),
        ignore_eos=True,  # only the chat format's tokens end a turn
        seed=request.seed,
        logprobs=0,
        detokenize=False,
        output_kind=RequestOutputKind.FINAL_ONLY,
    )


def _turn(output: Any) -> SampledTurn:
    if output.finish_reason not in ("stop", "length"):
        raise RuntimeError(f"vLLM ended a turn with {output.finish_reason!r}, expected 'stop' or 'length'.")
    ids = list(output.token_ids)
    return SampledTurn(ids, [entry[token].logprob for token, entry in zip(ids, output.logprobs, strict=True)])


def _pack_tied_head(model: torch.nn.Module) -> None:
    """Pack a tied output layer anew: on a CPU vLLM keeps a copy of it, which `reload_weights` leaves as it was."""
    layer: Any
    for layer in model.modules():
        if hasattr(layer, "cpu_linear") and hasattr(layer, "org_vocab_size"):
            layer.quant_method.process_weights_after_loading(layer)


def adapter_rank(model: Any) -> int:
    """Return the rank of the adapter that vLLM can apply to a model's base, 0 where whole weights must be sent."""
    config = adapter_of(model)
    return 0 if config is None else config.r


def adapter_of(model: Any) -> LoraConfig | None:
    """Return the configuration of a model's adapter if it is plain LoRA, which engines can apply.

    Args:
        model: the unwrapped model.
    """
    if not isinstance(model, PeftModel):
        return None
    config = model.active_peft_config
    return config if is_plain(config) else None


def is_plain(config: Any) -> TypeGuard[LoraConfig]:
    """Whether an adapter is plain LoRA."""
    if not isinstance(config, LoraConfig) or config.bias != "none" or config.init_lora_weights not in _OWN_WEIGHTS:
        return False
    return not any(getattr(config, name, None) for name in _NOT_PLAIN)


def check_whole(model: Any) -> None:
    """Refuse adapters whose merged weights have no place in a checkpoint of the base model.

    Args:
        model: the unwrapped model.

    Raises:
        ConfigurationError: see above.
    """
    if not isinstance(model, PeftModel):
        return
    config: Any = model.active_peft_config
    for name in ("trainable_token_indices", "target_parameters"):
        if getattr(config, name, None):
            raise ConfigurationError(f"engine=vllm cannot take over an adapter with {name}: set engine=cached.")
    base: Any = model.get_base_model()
    tied = base.config.get_text_config().tie_word_embeddings
    ends = base.get_input_embeddings(), base.get_output_embeddings()  # whatever their names are
    if tied and any(isinstance(module, ModulesToSaveWrapper) for module in ends):
        raise ConfigurationError(
            "engine=vllm cannot take over the head or the embeddings of an adapter (lora_modules_to_save) where the "
            "base model ties the two: set engine=cached."
        )


def save_adapter(model: Any, folder: Path) -> None:
    """Write the active adapter of a model, as PEFT does."""
    name = model.active_adapter
    model.save_pretrained(folder, selected_adapters=[name])
    if name != "default":  # PEFT puts others one folder further down
        for file in (folder / name).iterdir():
            file.rename(folder / file.name)
        (folder / name).rmdir()


def merged_parameters(model: Any) -> Iterator[tuple[str, Tensor]]:
    """Yield name and value of each parameter as a checkpoint has them, those of an adapter merged.

    One layer is merged at a time, and in a copy: in bf16, merging and taking apart again would change the base model.

    Args:
        model: the unwrapped model, whose weights are whole in this process.
    """
    if not isinstance(model, PeftModel):
        yield from ((name, parameter.detach()) for name, parameter in model.named_parameters())
        return
    base, replaced = model.get_base_model(), []
    for path, module in base.named_modules():
        if isinstance(module, ModulesToSaveWrapper):
            own: torch.nn.Module = module.modules_to_save[model.active_adapter]
        elif isinstance(module, BaseTunerLayer):
            merged: Any = copy.deepcopy(module)
            merged.merge()
            own = merged.get_base_layer()
        else:
            continue
        replaced.append(f"{path}.")
        yield from ((f"{path}.{name}", parameter.detach()) for name, parameter in own.named_parameters())
    for name, parameter in base.named_parameters():
        if not name.startswith(tuple(replaced)):
            yield name, parameter.detach()
