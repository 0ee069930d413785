"""Local models play for evaluation: through the trainer's engine, many episodes side by side, caches kept."""

from __future__ import annotations

import functools
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from agent_r1_gym.core import ToolEnv
from agent_r1_gym.errors import ConfigurationError, suggest
from agent_r1_gym.evaluation.base import Job, Played, Player
from agent_r1_gym.policies.methods import Method, Prompt
from agent_r1_gym.rollout import Episode
from agent_r1_gym.scoring import exact_match
from agent_r1_gym.trajectory import Trajectory
from agent_r1_gym.types import Message
from trainers.chat_format import ChatFormat
from trainers.engines import SamplingOptions, SlotEngine
from trainers.rollout import EpisodeLimits, EpisodeSession, TextEnv
from trainers.sampling import Answer

_MOST_TOKENS = 8_192
_TOOL_THREADS = 64
_DTYPES = ("auto", "bfloat16", "float16", "float32")
MakeEnv = Callable[..., ToolEnv]


@dataclass(frozen=True, kw_only=True)
class LocalOptions:
    """Which model, and how it decodes.

    Raises:
        ConfigurationError: a device that is not here, or no type of floating-point numbers.
    """

    model: str
    """Folder or hub id of a causal language model or of a LoRA adapter."""
    temperature: float = 0.0
    """0 is greedy."""
    top_p: float = 1.0
    """Smallest set of tokens with at least this probability."""
    max_new_tokens: int = 512
    """Most tokens of one turn."""
    max_length: int | None = None
    """Most tokens of an episode; None: as many as the model takes, at most 8,192."""
    device: str | None = None
    """None: a GPU if there is one, a different one for each process."""
    dtype: str | None = None
    """None: the checkpoint's on a GPU, float32 elsewhere."""
    chat_template: str | None = None
    """File, or name of one of TRL's; None: as it was saved beside the model."""
    chat_template_kwargs: Mapping[str, Any] | None = None
    """Options of the chat template; None: as they were saved beside the model."""

    def __post_init__(self) -> None:
        if self.device is not None:
            _check_device(self.device)
        kind = getattr(torch, self.dtype or "float32", None)
        if self.dtype != "auto" and not (isinstance(kind, torch.dtype) and kind.is_floating_point):
            hint = suggest(str(self.dtype), _DTYPES)
            raise ConfigurationError(f"dtype={self.dtype!r} is no type of floating-point numbers. {hint}")


def _check_device(name: str) -> None:
    """Refuses a device that torch does not know, or does not find; none is set up by looking."""
    try:
        device = torch.device(name)
        there = torch.get_device_module(device).device_count()
    except RuntimeError:  # its message lists names of devices that nobody has
        there = 0
    if there == 0 or (device.index or 0) >= there:
        gpus = [f"cuda:{index}" for index in range(torch.cuda.device_count())]
        raise ConfigurationError(f"device={name!r} is not available here; there is: {', '.join(['cpu', *gpus])}.")


def local_player(
    make_env: MakeEnv,
    method: Method,
    *,
    options: Mapping[str, Any],
    side_by_side: int,
    seed: int,
    name: str,
    rank: int = 0,
) -> EnginePlayer:
    """Returns the player of a model that is loaded from disk or hub.

    Args:
        make_env: returns a new environment; takes options of the environment that are not set otherwise.
        method: how the model is asked.
        options: fields of `LocalOptions`.
        side_by_side: episodes at once.
        seed: of the run.
        name: of the policy, for traces.
        rank: number of this process.
    """
    chosen = LocalOptions(**{key: value for key, value in options.items() if key != "weights"})
    model, tokenizer = load_model(chosen, rank=rank)
    return EnginePlayer(
        make_env,
        method,
        model,
        tokenizer,
        chat=ChatFormat.load(
            chosen.model, tokenizer, template=chosen.chat_template, template_options=chosen.chat_template_kwargs
        ),
        sampling={key: getattr(chosen, key) for key in ("temperature", "top_p", "max_new_tokens")},
        max_length=chosen.max_length,
        side_by_side=side_by_side,
        seed=seed,
        name=name,
    )


def load_model(options: LocalOptions, *, rank: int = 0) -> tuple[Any, Any]:
    """Returns model and tokenizer; a LoRA adapter brings its base model along.

    Raises:
        ConfigurationError: there is no such model.
    """
    device = options.device or (f"cuda:{rank % torch.cuda.device_count()}" if torch.cuda.is_available() else "cpu")
    dtype = options.dtype or ("auto" if device.startswith("cuda") else "float32")
    try:
        model = AutoModelForCausalLM.from_pretrained(options.model, dtype=dtype)
        tokenizer = AutoTokenizer.from_pretrained(_tokenizer_source(options.model))
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"No model can be loaded from {options.model!r}: {error}") from error
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    model.to(torch.device(device))  # type: ignore[arg-type]  # transformers wraps `to`
    model.train(False)
    return model, tokenizer


def _tokenizer_source(model: str) -> str:
    """Returns where the tokenizer is: an adapter that was saved without one has its base model's."""
    adapter = Path(model) / "adapter_config.json"
    if adapter.is_file() and not (Path(model) / "tokenizer_config.json").is_file():
        return str(json.loads(adapter.read_text(encoding="utf-8"))["base_model_name_or_path"])
    return model


class EnginePlayer(Player):
    """Plays a transformers model through `SlotEngine`.

    What a model samples depends on the episode's seed alone, not on its neighbours or their number, but for rounding:
    floating-point sums may differ in the last bit with the size of the batch.

    Args:
        make_env: see `local_player`.
        method: how the model is asked.
        model: a causal language model.
        tokenizer: with a chat template, an end and a padding token.
        sampling: fields of `SamplingOptions`: `max_new_tokens` and what differs from its defaults.
        chat: how messages become tokens; None: by the tokenizer's own template.
        max_length: most tokens of an episode; None: as many as the model takes, at most 8,192.
        side_by_side: episodes at once.
        seed: of the run.
        name: of the policy, for traces.
    """

    def __init__(
        self,
        make_env: MakeEnv,
        method: Method,
        model: Any,
        tokenizer: Any,
        *,
        sampling: Mapping[str, Any],
        chat: ChatFormat | None = None,
        max_length: int | None = None,
        side_by_side: int = 64,
        seed: int = 0,
        name: str = "local",
    ) -> None:
        self._method, self._seed, self._name = method, seed, name
        self._chat = chat or ChatFormat(tokenizer)
        # What a document prints must not become a special token of this very tokenizer.
        self._make_env = functools.partial(make_env, markup=self._chat.markup)
        room = getattr(model.config.get_text_config(), "max_position_embeddings", _MOST_TOKENS)
        length = max_length or min(room, _MOST_TOKENS)
        self._limits = EpisodeLimits(max_prompt_tokens=length - 1, max_completion_tokens=length)
        self._engine = SlotEngine(
            model,
            SamplingOptions(stop_token_ids=self._chat.stop_ids, **sampling),
            slots=side_by_side,
            max_length=length,
            pad_token_id=tokenizer.pad_token_id,
        )
        self._free: list[ToolEnv] = []
        self._stopped = threading.Event()

    def play(self, jobs: Sequence[Job]) -> Iterator[Played]:
        """See the base class."""
        news: SimpleQueue[Played | BaseException | None] = SimpleQueue()
        self._stopped.clear()
        # The engine returns when all is played; in a thread, so that each episode can be handed on as it ends.
        thread = threading.Thread(target=self._run, args=(jobs, news), name="engine", daemon=True)
        thread.start()
        try:
            while (found := news.get()) is not None:
                if isinstance(found, BaseException):
                    raise found
                yield found
        finally:
            self._stopped.set()
            thread.join()

    def _run(self, jobs: Sequence[Job], news: SimpleQueue[Played | BaseException | None]) -> None:
        try:
            with ThreadPoolExecutor(_TOOL_THREADS, thread_name_prefix="tools") as executor:
                self._engine.run(self._sessions(jobs, news.put, executor))
            news.put(None)
        except BaseException as error:  # raised again by the thread that waits for news
            news.put(error)

    def _sessions(
        self, jobs: Sequence[Job], put: Callable[[Played], None], executor: ThreadPoolExecutor
    ) -> Iterator[_Session]:
        for job in jobs:
            if self._stopped.is_set():
                return
            session = self._session(job, put, executor)
            if session is not None:
                yield session

    def _session(self, job: Job, put: Callable[[Played], None], executor: ThreadPoolExecutor) -> _Session | None:
        """Starts an episode; None if it is over before the model has said anything."""
        env = self._free.pop() if self._free else self._make_env()
        start = time.perf_counter()
        episode = Episode.start(env, job.task_index, seed=job.seed(self._seed))

        def finish() -> None:
            put(Played(job, episode.trajectory(self._name), time.perf_counter() - start))
            self._free.append(env)

        prompt = _first_prompt(self._method, episode)
        if prompt is not None and episode.turns and self._is_too_long(prompt):
            episode.truncate()  # what was retrieved leaves the model no room
        if prompt is None or episode.ended:
            finish()
            return None
        return _Session(
            episode,
            prompt,
            self._chat,
            method=self._method,
            seed=job.seed(self._seed),
            limits=self._limits,
            executor=executor,
            finish=finish,
            stopped=self._stopped,
        )

    def _is_too_long(self, prompt: Prompt) -> bool:
        return len(self._chat.prompt_ids(prompt)) > self._limits.max_prompt_tokens


def _first_prompt(method: Method, episode: Episode) -> Prompt | None:
    """Plays the turns that need no model; returns what it is shown then, None if the episode is over."""
    while not episode.ended:
        move = method.ask(episode.policy_input())
        if not isinstance(move, str):
            return move
        episode.add(move, episode.env.step(move))
    return None


class _Session(EpisodeSession):
    """An episode for the engine, kept as text too."""

    def __init__(
        self,
        episode: Episode,
        prompt: Prompt,
        chat: ChatFormat,
        *,
        method: Method,
        seed: int,
        limits: EpisodeLimits,
        executor: ThreadPoolExecutor,
        finish: Callable[[], None],
        stopped: threading.Event,
    ) -> None:
        self.seed = seed
        self._episode, self._prompt, self._method, self._stop = episode, prompt, method, stopped

        def release(_: TextEnv) -> None:
            self._settle()
            finish()

        row = {"task_index": episode.task_index, "seed": seed}
        super().__init__(episode.env, row, chat, limits=limits, executor=executor, release=release)

    def finish_turn(self, ids: list[int], logprobs: list[float], stopped: bool) -> Any:
        """See the base class; an evaluation that was given up ends at the next turn."""
        return None if self._stop.is_set() else super().finish_turn(ids, logprobs, stopped)

    def _opening(self) -> Sequence[Message]:
        return self._prompt

    def _act(self, ids: Sequence[int]) -> str:
        self._action = self._method.action(self._episode.policy_input(), super()._act(ids))
        return self._action

    def _after_step(
        self, start: int, stopped: bool, observation: str, reward: Any, terminated: bool, truncated: bool, info: Any
    ) -> Answer:
        end, before = len(self._ids), len(self.prompt_ids) + start
        self._episode.add(
            self._action,
            (observation, float(reward), terminated, truncated, info),
            prompt_tokens=before,
            completion_tokens=end - start,
        )
        if self._method.one_shot and not self._episode.ended:
            self._episode.truncate("no_answer")
            self._release(self.env)
            return None
        return super()._after_step(start, stopped, observation, reward, terminated, truncated, info)

    def _settle(self) -> None:
        """Takes over an end by the budget of tokens, which only the base class knows of."""
        if self._truncated and not self._episode.ended:
            self._episode.truncated, self._episode.end_reason = True, "max_tokens"
            if self._turns:
                last = replace(self._episode.turns[-1], reward=self._turns[-1].reward)
                self._episode.turns[-1] = last


def is_solved(episode: Trajectory) -> bool:
    """Returns whether the answer is a gold answer, by exact match."""
    return episode.answer is not None and exact_match(episode.answer, episode.gold_answers) > 0
