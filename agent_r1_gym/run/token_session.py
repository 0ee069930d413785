"""TokenSession: a running episode as token ids, for engines that sample them in this process.

Tokens get id, mask and log-prob when they are sampled and are never re-tokenised from text: what the environment adds
is rendered by the chat format as the tokens between two turns.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

from agent_r1_gym.core.parsing import NativeParser
from agent_r1_gym.core.tool import PendingCall, execute_calls, has_instant_call_that_waits
from agent_r1_gym.core.tool_env import ToolEnv
from agent_r1_gym.core.types import Message, ToolCall, ToolOutcome
from agent_r1_gym.core.vector import step_together, supports_split_step
from agent_r1_gym.errors import ConfigurationError
from agent_r1_gym.registry import TextEnv
from agent_r1_gym.run.policies import PromptMethod
from agent_r1_gym.run.record import Tokens
from agent_r1_gym.run.session import Job, OnEnd, OnTurn, ResetFn, Session, Step, TokenUsage


@dataclass(frozen=True, slots=True)
class NewContext:
    """Reply of a session whose context was rewritten: the whole context of the next turn.

    Attributes:
        ids: the context, at least one token.
    """

    ids: list[int]

    def __post_init__(self) -> None:
        if not self.ids:
            raise ValueError("A new context needs at least one token, got none.")

    def common_prefix_length(self, cached: Sequence[int]) -> int:
        """Return the length of the cached prefix; the last token of the context must be fed and never counts."""
        pairs = enumerate(zip(cached, self.ids[:-1], strict=False))
        return next((at for at, (old, new) in pairs if old != new), min(len(cached), len(self.ids) - 1))


NextTokens = list[int] | NewContext | None
NextTokensOrFuture = NextTokens | Future[NextTokens]


class ChatRenderer(Protocol):
    """Renders messages as tokens, and tokens as actions."""

    @property
    def markup(self) -> Sequence[str]:
        """Texts of special tokens, which text from outside must not produce."""

    def prompt_ids(self, messages: Sequence[Message]) -> list[int]:
        """Return the tokens before the first model turn."""

    def between_turns_ids(
        self, messages: Sequence[Message], *, stopped: bool, turn: Message | None = None
    ) -> list[int]:
        """Return the tokens between `turn` and the next, including the end of turn if the first was not `stopped`."""

    def ended(self, ids: Sequence[int], turn: Message | None = None) -> bool:
        """Return whether a sampled turn ends with the template's end of turn."""

    def rewrites(self, messages: Sequence[Message], *, new: int) -> bool:
        """Return whether the last `new` messages change how the template renders the earlier ones."""

    def action(self, ids: Sequence[int]) -> str:
        """Decode sampled tokens into an action."""

    def with_tools(self, tools: Sequence[Mapping[str, Any]]) -> ChatRenderer:
        """Return the renderer for structured calls of these tools, in the model's own format."""

    def write_call(self, call: ToolCall) -> str:
        """Write a call in the model's own format, of a renderer with tools."""

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """Tokens that end a model turn."""

    def check_plain(self) -> None:
        """Refuse a chat template that only works with tools."""


def bind_chat(chat: Any, env: TextEnv, *, tools: Sequence[Mapping[str, Any]] | None = None) -> Any:
    """Return the renderer for an environment: with its tools if its parser is "native", else `chat`.

    Args:
        chat: a `ChatRenderer`.
        env: the environment.
        tools: schemas of the tools to show; None: those of the running episode.

    Raises:
        ConfigurationError: the chat template does not have the format that the parser needs.
    """
    bare = env.unwrapped
    if not isinstance(bare, ToolEnv) or not isinstance(bare.parser, NativeParser):
        return chat
    bound = chat.with_tools(bare.tool_schemas if tools is None else tools)
    bare.parser.write_call = bound.write_call
    return bound


def check_chat(chat: Any, env: TextEnv) -> None:
    """Refuse a chat format that cannot play an environment, before the model is loaded.

    Args:
        chat: a `ChatRenderer`.
        env: the environment.

    Raises:
        ConfigurationError: the chat template does not have the format that the parser needs.
    """
    bare = env.unwrapped
    if isinstance(bare, ToolEnv) and isinstance(bare.parser, NativeParser):
        chat.with_tools([tool.schema for tool in bare.make_tools(bare.tasks[0])])
    else:
        chat.check_plain()


@dataclass(frozen=True, slots=True)
class TokenLimits:
    """Token budgets of an episode.

    Attributes:
        max_prompt_tokens: maximum length of the prompt; a longer one is an error.
        max_completion_tokens: maximum number of tokens after the prompt, including the environment's; the episode is
            truncated there. With rewritten contexts: the maximum length of a context beyond that of the first prompt.
        max_contexts: maximum number of contexts of an episode; it is truncated when another one is needed.
    """

    max_prompt_tokens: int
    max_completion_tokens: int
    max_contexts: int = 64


class TokenSession(Session):
    """An episode for an engine that samples tokens.

    A step whose `info["context_rewritten"]` is True starts a new context: instead of being appended to, the context is
    rendered again, from `info["messages"]` of a `ToolEnv` (under a `ContextWindow`, for example), or from the
    observation of another environment as the only user turn. With `info["resumed_turn"]`, the number of an earlier
    turn, the new context is that of this turn and the turn, token by token, and `info["new_messages"]` behind it.

    Args:
        env: see `Session`; so are `job`, `method`, `policy`, `on_end`, `on_turn` and `start`.
        job: see `Session`.
        chat: renders messages.
        limits: token budgets.
        executor: steps environments that are not instant, so that other episodes keep decoding.
        method: see `Session`.
        policy: see `Session`.
        on_end: see `Session`.
        on_turn: see `Session`.
        start: see `Session`.

    Attributes:
        sampling: overrides of the engine's sampling options.
        deadline: `time.monotonic()` at which the engine cuts the turn short and the episode is truncated; None: never.
        prompt_ids: tokens before the first turn; empty if the episode ends before the first model turn.

    Raises:
        ConfigurationError: the prompt is longer than its budget.
    """

    def __init__(
        self,
        env: TextEnv,
        job: Job,
        *,
        chat: ChatRenderer,
        limits: TokenLimits,
        executor: ThreadPoolExecutor,
        method: PromptMethod | None = None,
        policy: str = "",
        on_end: OnEnd | None = None,
        on_turn: OnTurn | None = None,
        start: ResetFn | None = None,
    ) -> None:
        super().__init__(env, job, method=method, policy=policy, on_end=on_end, on_turn=on_turn, start=start)
        self._unbound_chat = chat
        self._chat: ChatRenderer = bind_chat(chat, env, tools=() if self.method.single_turn else None)
        self._limits, self._executor = limits, executor
        # The ends of turns with calls may be other tokens than those that the engine knows of.
        self.sampling: Mapping[str, Any] = {} if self._chat is chat else {"stop_token_ids": self._chat.stop_ids}
        self.deadline: float | None = None
        self._ids: list[int] = []
        self._logprobs: list[float | None] = []  # None: not sampled; NaN: sampled, but its log-prob is unknown
        self._spans: list[tuple[int, int]] = []
        self._context_starts: list[int] = []
        self.prompt_ids: list[int] = []
        self._open()

    @property
    def interrupted(self) -> bool:
        """Whether the engine should stop sampling the current turn."""
        return self.cancelled or self.past_deadline

    @property
    def _is_program(self) -> bool:
        """Whether a program writes the prompts, so that one that does not fit is not the fault of the settings."""
        return self.tool_env is not None and self.tool_env.waits_at_reset

    @property
    def past_deadline(self) -> bool:
        """Whether the episode's time is over."""
        return self.deadline is not None and time.monotonic() >= self.deadline

    @property
    def max_length(self) -> int:
        """Maximum number of tokens of a context."""
        return len(self.prompt_ids) + self._limits.max_completion_tokens

    def finish_turn(self, ids: list[int], logprobs: list[float], stopped: bool) -> NextTokensOrFuture:
        """Record a sampled turn and step the environment.

        Args:
            ids: sampled tokens, with the stop token if it was sampled. Empty if the context had reached `max_length`
                before the turn: the reply is then None.
            logprobs: log softmax(logits / temperature) of each, fp32, before top-k and top-p (at temperature 0: of the
                plain logits); NaN where the backend reports none.
            stopped: False if a token limit cut the turn.

        Returns:
            The tokens to append before the next turn, the `NewContext` that replaces all tokens so far, None when the
            episode is over, or a Future of one of these.
        """
        if self.cancelled:
            self.stop()
            return None
        with self.error_context():
            if not ids:
                self.truncate()
                return None
            self.hit_token_limit = not stopped
            start = len(self._ids)
            self._ids += ids
            self._logprobs += logprobs
            self._spans.append((start, len(self._ids)))
            action = self.action_from_text(self._chat.action(ids), self._usage(), is_cut=not stopped)
            self.stepping, self.phase_started_at = True, time.monotonic()
            return self._take_step(action)

    def _open(self) -> None:
        """Play the turns that need no model, then render the prompt."""
        with self.error_context():
            move = self.next_prompt()
            while isinstance(move, str):
                self.record_step(move, self.env.step(move))
                if self.ended:
                    return
                move = self.next_prompt()
            try:
                ids = self._chat.prompt_ids(move)
            except ConfigurationError as error:
                self._fail_rendering(error)
                return
        if len(ids) <= self._limits.max_prompt_tokens:
            self.prompt_ids = ids
        elif self.turns:
            self.truncate()  # the retrieved text leaves no room for a turn
        elif self._is_program:
            self.fail_infra(
                f"The first request of the program has {len(ids)} tokens, more than the "
                f"{self._limits.max_prompt_tokens} allowed (max_prompt_length in training, --max-length elsewhere)."
            )
        else:
            raise ConfigurationError(
                f"The prompt of task {self.job.task_index} (seed {self.job.seed}) has {len(ids)} tokens, more than the "
                f"{self._limits.max_prompt_tokens} allowed (max_prompt_length in training, --max-length "
                "elsewhere): raise the limit, or shorten the question or the environment's system_prompt."
            )

    def _take_step(self, action: str) -> NextTokensOrFuture:
        """Run instant steps in this thread and others in the executor; the step of a bare `ToolEnv` can be split.

        A step whose reward waits for a judge is none of the instant ones, though its calls may be. A turn in which an
        instant call must follow another one is executed as a whole in this thread, to which instant tools may be bound.
        """
        if not isinstance(self.env, ToolEnv) or not supports_split_step(self.env):
            return self._executor.submit(self._step, action) if self.is_io_bound(action) else self._step(action)
        calls = self.env.begin_step(action)
        in_order = has_instant_call_that_waits(calls)
        here = [position for position, call in enumerate(calls) if in_order or call.tool.is_instant]
        with self.error_context():
            done = dict(zip(here, execute_calls([calls[position] for position in here]), strict=True))
        if len(done) < len(calls) or self.env.rewards.waits_for_backend:
            return self._executor.submit(self._finish, action, calls, done)
        return self._finish(action, calls, done)

    def _step(self, action: str) -> NextTokens:
        with self.error_context():
            return self._record_turn(action, *step_together([self.env], [action]))

    def _finish(self, action: str, calls: Sequence[PendingCall], done: Mapping[int, ToolOutcome]) -> NextTokens:
        """Execute the calls of a bare `ToolEnv` that are not `done`, by position, and finish its step."""
        with self.error_context():
            assert isinstance(self.env, ToolEnv)
            others = iter(execute_calls([call for position, call in enumerate(calls) if position not in done]))
            outcomes = [done[position] if position in done else next(others) for position in range(len(calls))]
            return self._record_turn(action, self.env.finish_step(outcomes))

    def _record_turn(self, action: str, step: Step) -> NextTokens:
        self.record_step(action, step, model_usage=self._usage())
        self.stepping, self.phase_started_at = False, time.monotonic()
        return None if self.ended else self._next_context(step[0], step[4])

    def _usage(self) -> TokenUsage:
        """Count the tokens of the latest turn and of the context before it."""
        start, end = self._spans[-1]
        context = self._context_starts[-1] if self._context_starts else -len(self.prompt_ids)
        return TokenUsage(start - context, end - start)

    def _next_context(self, observation: str, info: Any) -> NextTokens:
        """Return the context of the next turn, or None if the token limits leave no room for it.

        A chat template may rewrite the context too: some drop earlier thinking.
        """
        try:
            reply = self._render_reply(observation, info)
        except ConfigurationError as error:
            self._fail_rendering(error)
            return None
        if self.past_deadline or not self._has_room(reply):
            self.truncate("max_time" if self.past_deadline else "max_tokens")
            return None
        if isinstance(reply, NewContext):
            self._context_starts.append(len(self._ids))
        added = reply.ids if isinstance(reply, NewContext) else reply
        self._ids += added
        self._logprobs += [None] * len(added)
        return reply

    def _render_reply(self, observation: str, info: Any) -> list[int] | NewContext:
        """Render what follows the latest turn."""
        new = (Message("user", observation),) if self.tool_env is None else info["new_messages"][1:]
        rewritten, resumed = info.get("context_rewritten"), info.get("resumed_turn")
        if rewritten and not self.method.single_turn:
            self._chat = bind_chat(self._unbound_chat, self.env)  # a program may offer other tools
        if (rewritten and resumed is None) or self._chat.rewrites(self.messages, new=len(new)):
            return NewContext(self._chat.prompt_ids(self.messages))
        start, end = self._spans[-1 if resumed is None else resumed]
        turn = self.messages[-len(new) - 1]
        stopped = self._chat.ended(self._ids[start:end], turn)
        gap = self._chat.between_turns_ids(new, stopped=stopped, turn=turn)
        return gap if resumed is None else NewContext([*self._context_ids(start), *self._ids[start:end], *gap])

    def _fail_rendering(self, error: ConfigurationError) -> None:
        """Lose the episode of a program whose messages the chat template refuses; raise for an environment's own."""
        if not self._is_program:
            raise error
        self.fail_infra(f"The messages of the program cannot be rendered: {error}")

    def _context_ids(self, start: int) -> list[int]:
        """Return the tokens that the turn at `start` was sampled after."""
        opened = [position for position in self._context_starts if position <= start]
        return self._ids[opened[-1] : start] if opened else [*self.prompt_ids, *self._ids[:start]]

    def _has_room(self, reply: list[int] | NewContext) -> bool:
        """Return whether the token limits allow another turn."""
        starts = self._context_starts
        if isinstance(reply, NewContext):
            return len(starts) + 1 < self._limits.max_contexts and len(reply.ids) < self.max_length
        context = len(self._ids) - starts[-1] if starts else len(self.prompt_ids) + len(self._ids)
        return context + len(reply) < self.max_length

    def _tokens(self) -> Tokens:
        starts, length = self._context_starts, len(self._ids)
        if starts and starts[-1] == self._spans[-1][1]:  # a context without a turn has nothing to train on
            starts, length = starts[:-1], starts[-1]
        return Tokens(
            prompt_ids=tuple(self.prompt_ids),
            completion_ids=tuple(self._ids[:length]),
            loss_mask=tuple(int(logprob is not None) for logprob in self._logprobs[:length]),
            logprobs=tuple(self._logprobs[:length]),
            spans=tuple(self._spans),
            context_starts=tuple(starts),
        )


def context_limit(session: Any, maximum: int) -> int:
    """Return the context length of a session in an engine that supports at most `maximum` tokens."""
    return min(maximum, getattr(session, "max_length", maximum))


def end_context_full(session: Any, longest: int) -> None:
    """End a session whose context leaves no room for another turn.

    Args:
        session: a `TokenSession`.
        longest: of `context_limit`.

    Raises:
        ConfigurationError: the session continues.
    """
    if session.finish_turn([], [], False) is not None:
        raise ConfigurationError(
            f"A session continues although its context has reached max_length={longest}: finish_turn must return None "
            "after a turn without tokens."
        )
