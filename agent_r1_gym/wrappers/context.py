"""ContextWindow: shorten long histories for the policy by removing or summarising old tool output."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any, cast

import gymnasium
from gymnasium.utils import RecordConstructorArgs

from agent_r1_gym.core.spaces import UnicodeText
from agent_r1_gym.core.text import render_text
from agent_r1_gym.core.tool_env import ToolEnv
from agent_r1_gym.core.types import Message
from agent_r1_gym.errors import ConfigurationError
from agent_r1_gym.support.checks import check_choice, check_integer
from agent_r1_gym.wrappers.base import HistoryWrapper, Info, require_text

REMOVED_PLACEHOLDER = "(older output removed)"
"""Default text of `ContextWindow` in place of older tool output."""
WINDOW_MODES = ("drop", "drop_turns", "summary")
WINDOW_OPTIONS = ("context_window", "context_mode")
"""Options of an environment that set the window around it (see `split_window` and `with_window`)."""
_OPEN, _CLOSE = "<summary>", "</summary>"


class ContextWindow(HistoryWrapper):
    """Keeps long histories short: older tool output, or whole turns, are removed or summarised.

    Observation and `info["messages"]` show the rest. The tool messages of the last `keep_last` turns that called tools
    stay unchanged; older ones are replaced by `placeholder`, or by a summary (see `mode`), where that is shorter. The
    environment keeps the full history (`get_state().messages`), and its budgets count it. `info["context_rewritten"]`
    is True in a step that changed text the model has seen before: the tokens so far are then not a prefix of the next
    context. `info["hidden_turns"]` lists the turns with incomplete output, counted from the end: -2, -3.

    Args:
        env: a `ToolEnv`, bare or wrapped.
        keep_last: turns whose tool output stays, at least 1.
        mode: "drop"; "drop_turns", which removes older turns entirely, the model's text included; "summary", which
            does that too, but adds to the first user turn what the model itself last wrote in them between
            `<summary>` and `</summary>`; or a function from the text of one tool message to a shorter text, called
            once per text and episode. Its result is sanitized like any foreign text, and its exceptions are raised
            by `step`.
        max_chars: rewrite only while the history is longer than this, oldest first; None: always.
        placeholder: the text of "drop"; choose one from your vocabulary if the default's words are not in it.

    Raises:
        ConfigurationError: an argument has a wrong value, or, from `step`, the function did not return a string.
    """

    def __init__(
        self,
        env: gymnasium.Env[str, str],
        *,
        keep_last: int = 2,
        mode: str | Callable[[str], str] = "drop",
        max_chars: int | None = None,
        placeholder: str = REMOVED_PLACEHOLDER,
    ) -> None:
        RecordConstructorArgs.__init__(
            self, keep_last=keep_last, mode=mode, max_chars=max_chars, placeholder=placeholder, _disable_deepcopy=True
        )
        super().__init__(env)
        if not callable(mode):
            check_choice("mode of ContextWindow (or a function)", mode, WINDOW_MODES)
        require_text(env, "ContextWindow rewrites text", "put it below the other wrappers")
        check_integer("keep_last", keep_last, 1)
        check_integer("max_chars", 1 if max_chars is None else max_chars, 1)
        self._keep_last = keep_last
        self._max_chars = max_chars
        self._mode = mode
        self._placeholder = placeholder
        self._sanitize = cast(ToolEnv, env.unwrapped).formatter.sanitize
        self._summaries: dict[str, str] = {}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Info]:
        """Start an episode and clear the summaries of the last one."""
        self._summaries.clear()
        return super().reset(seed=seed, options=options)

    def observe(self, observation: str, info: Info) -> tuple[str, Info]:
        """Return the history as the window shows it."""
        messages: tuple[Message, ...] = info["messages"]
        seen = self._rewrite(messages[: len(messages) - len(info["new_messages"])])
        window = self._rewrite(messages)
        info["context_rewritten"] = window[: len(seen)] != seen
        info["hidden_turns"] = _hidden_turns(messages, window)
        if window == messages:
            return observation, info
        info["messages"] = window
        return render_text(window)[: cast(UnicodeText, self.observation_space).max_length], info

    def _rewrite(self, messages: tuple[Message, ...]) -> tuple[Message, ...]:
        return (self._without_turns if self._mode in WINDOW_MODES[1:] else self._without_output)(messages)

    def _without_turns(self, messages: tuple[Message, ...]) -> tuple[Message, ...]:
        """Remove older turns entirely; the prompt stays."""
        prompt = messages[: self._prompt_length()]
        starts = [position for position in range(len(prompt), len(messages)) if messages[position].role == "assistant"]
        with_output = [positions for positions in _output_positions(messages, len(prompt)) if positions]
        if len(with_output) <= self._keep_last:
            return messages
        last = with_output[-self._keep_last][0]
        first_kept = max(start for start in starts if start < last)
        for start in starts:
            short = (*self._with_summary(prompt, messages[starts[0] : start]), *messages[start:])
            if start == first_kept or (self._max_chars is not None and len(render_text(short)) <= self._max_chars):
                return short
        return messages

    def _with_summary(self, prompt: tuple[Message, ...], removed: Sequence[Message]) -> tuple[Message, ...]:
        """Append to the prompt the last summary that the model wrote in the removed turns."""
        assistant_text = "\n".join(message.content for message in removed if message.role == "assistant")
        end = assistant_text.rfind(_CLOSE)
        start = assistant_text.rfind(_OPEN, 0, max(end, 0))
        if self._mode != "summary" or start < 0:
            return prompt
        summary = self._sanitize(assistant_text[start + len(_OPEN) : end])
        content = f"{prompt[-1].content}\n{_OPEN}{summary}{_CLOSE}"
        return (*prompt[:-1], replace(prompt[-1], content=content))

    def _without_output(self, messages: tuple[Message, ...]) -> tuple[Message, ...]:
        """Replace older tool messages by something shorter, oldest first."""
        window = list(messages)
        excess = None if self._max_chars is None else len(render_text(messages)) - self._max_chars
        with_output = [positions for positions in _output_positions(messages, self._prompt_length()) if positions]
        for position in chain.from_iterable(with_output[: -self._keep_last]):
            if excess is not None and excess <= 0:
                break
            content = messages[position].content
            shorter = self._shorten(content)
            if len(shorter) < len(content):
                window[position] = replace(messages[position], content=shorter)
                excess = None if excess is None else excess - len(content) + len(shorter)
        return tuple(window)

    def _prompt_length(self) -> int:
        """Number of messages that stay in any case: worked episodes before the task are not history."""
        return cast(ToolEnv, self.env.unwrapped).prompt_length

    def _shorten(self, content: str) -> str:
        if not callable(self._mode):
            return self._placeholder
        if content not in self._summaries:
            summary = self._mode(content)
            if not isinstance(summary, str):
                raise ConfigurationError(f"The summariser must return a string, got {type(summary).__name__}.")
            self._summaries[content] = self._sanitize(summary)
        return self._summaries[content]


def split_window(options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split options into those of the environment and the `WINDOW_OPTIONS` among them that are not None.

    The default mode of a window is "drop", as in the class.
    """
    window = {name: options[name] for name in WINDOW_OPTIONS if options.get(name) is not None}
    if "context_window" in window:
        window.setdefault("context_mode", WINDOW_MODES[0])
    return {name: value for name, value in options.items() if name not in WINDOW_OPTIONS}, window


def with_window(env: gymnasium.Env[str, str], name: str, window: Mapping[str, Any]) -> gymnasium.Env[str, str]:
    """Wrap an environment in the window that its options ask for, if any.

    Args:
        env: any text environment.
        name: its name in error messages.
        window: the second result of `split_window`.

    Raises:
        ConfigurationError: a value is wrong, there is a mode and no window, or the environment is not a `ToolEnv`.
    """
    if not window:
        return env
    mode, keep_last = window["context_mode"], window.get("context_window")
    check_choice("context_mode", mode, WINDOW_MODES)
    if keep_last is None:
        raise ConfigurationError(
            f"context_mode={mode!r} has no effect without context_window: set it to the number of turns whose tool "
            "output stays visible."
        )
    check_integer("context_window", keep_last, 1)
    if not isinstance(env.unwrapped, ToolEnv):
        raise ConfigurationError(
            f"context_window={keep_last}: {name!r} is not a ToolEnv, so there is no tool output to remove. Drop the "
            'option; other environments set info["context_rewritten"] themselves.'
        )
    return ContextWindow(env, keep_last=keep_last, mode=mode)


def _output_positions(messages: Sequence[Message], start: int = 0) -> list[list[int]]:
    """Find the positions of the tool messages of each turn that begins at `start` or later."""
    turns: list[list[int]] = [[]]
    for position, message in enumerate(messages[start:], start):
        if message.role == "assistant":
            turns.append([])
        elif message.role == "tool":
            turns[-1].append(position)
    return turns[1:]


def _hidden_turns(messages: Sequence[Message], window: Sequence[Message]) -> tuple[int, ...]:
    """Find the turns, counted from the end, with output that the window does not show unchanged."""
    visible, turns = set(map(id, window)), _output_positions(messages)
    hidden = (any(id(messages[position]) not in visible for position in positions) for positions in turns)
    return tuple(number - len(turns) for number, is_hidden in enumerate(hidden) if is_hidden)
