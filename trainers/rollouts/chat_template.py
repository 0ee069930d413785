"""ChatTemplate: what a chat template makes of an episode's messages, as text; probed once, with dummy conversations.

An engine appends: a model's turn stays as it was sampled, and what comes before the next turn (end of turn, tool
output, next header) is the difference of two renderings. So a template is *exact* if a whole history, rendered anew,
reads as the model has seen it turn by turn. Much that templates do otherwise is only a matter of how they are asked;
the probes find out how:

- a template without a role for tools gets their output as user turns, and one that refuses or moves a system prompt
  (Gemma 1, Mistral) gets it at the head of the first user turn;
- where roles must alternate, neighbours of one role are joined by a blank line;
- thinking is handed over inside the text, or as `reasoning_content`, whichever the template keeps.

What is left is *rewritten*: the template drops the thinking of earlier turns, or shows them otherwise. Such a history
is rendered anew wherever it differs (see `ChatTemplate.rewrites`), as for any rewritten context, so that the model is
trained on what it is served. To refuse these templates would be simpler, but most of them rewrite nothing as long as
the model does not think (Gemma 4, LFM2.5): there the check finds no difference, and costs one rendering per turn.
A template that loses text, that ends no turn, or that leaves its header to the model is refused.
"""

from __future__ import annotations

import datetime
import difflib
import importlib.util
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any, Literal

from jinja2 import Environment, TemplateSyntaxError

from agent_r1_gym.core.parsing import THOUGHT_MARKS
from agent_r1_gym.core.types import Message, Role
from agent_r1_gym.errors import ConfigurationError
from agent_r1_gym.support.concurrency import TimeLimitError, time_limit

RenderMode = Literal["exact", "rewritten"]

_USER, _MODEL, _REPLY, _THOUGHT = "4be7u", "9c1dm", "7fa2r", "5hd8k"
"""Contents of the dummy conversations: short, and nowhere else in a template."""
PROBES = ("", " \n\"a\\b'<é>\n ", '<tool_response>\n<think>a</think>{"b": 1}\n</tool_response>')
"""Contents that a template which trims, escapes or parses would change."""
_REPLIES: tuple[tuple[Role, ...], ...] = (("tool",), ("tool", "tool"), ("tool", "user"), ("user",), ("tool",))
"""Roles after each turn of a dummy conversation: a tool, two tools, a call and an error, a user."""
_TOOL_ROLES: tuple[Role, ...] = ("tool", "user")
_THINKING_FIELDS = (None, "reasoning_content")
_PROBE_SECONDS, _PROBE_CHARACTERS, _PROBE_BYTES = 60, 1_000_000, 2 * 2**30
_DUMMY = (Message("user", _USER), Message("assistant", _MODEL))
_TRAINING = "_training.jinja"
_TODAY = re.compile(r"strftime_now\(\s*(['\"])([%\w :,./-]*)\1\s*\)")
"""How templates print the date (Llama 3.2, gpt-oss)."""
_KEEPING = {
    "preserve_thinking": True,
    "keep_past_thinking": True,
    "truncate_history_thinking": False,
    "clear_thinking": False,
}
"""Options by which templates of several families keep the thinking of earlier turns."""
_CALL = {"type": "function", "function": {"name": "f", "arguments": {"a": "b"}}}
_U, _A, _T = ({"role": role, "content": f"{role} text"} for role in ("user", "assistant", "tool"))
_THINKING_TURN = {"role": "assistant", "content": "<think>\nplan\n</think>\n\nanswer"}
_CONVERSATIONS: tuple[list[dict[str, Any]], ...] = (
    [_U],
    [{"role": "system", "content": "rules"}, _U, _A, _U],
    [_U, _THINKING_TURN, _U],
    [_U, {"role": "assistant", "content": "answer", "reasoning_content": "plan"}, _T, _A, _U],
    [_U, _A, _T, _T, _U],
    [_U, {**_A, "tool_calls": [_CALL]}, _T],
)
"""Templates that render these alike are taken for the same."""


class EndlessTemplateError(ConfigurationError):
    """A template takes, or writes, so much that it must not be rendered again, not even to look for another."""


class ChatTemplate:
    """A template with the way to ask it.

    Args:
        tokenizer: renders; its special tokens end turns.
        source: text of the template, in jinja.
        options: further arguments of `apply_chat_template` (such as `enable_thinking`).
        date: the day that the template prints as today's, such as "2026-01-31"; None: today. It stays the same for as
            long as the object lives: prompts must not change at midnight.

    Attributes:
        source: text of the template.
        options: see above.
        date: see above; None where the template prints no date.
        stop_id: the token that the template puts after a model turn.
        stop_text: that token's text.
        system_role: "user" where the system prompt is the head of the first user turn.
        tool_role: "user" where tool output comes as user turns.
        merges_same_role: whether neighbours of one role are joined.
        thinking_field: field of a message where the template reads a turn's thinking; None: inside the text.
        render_mode: see the module's docstring.
        note: how a history that is rendered anew differs from what the model saw; "" if in nothing.

    Raises:
        ConfigurationError: the template is refused; with the reason.
    """

    def __init__(
        self, tokenizer: Any, source: str, *, options: Mapping[str, Any] | None = None, date: str | None = None
    ) -> None:
        self._tokenizer = tokenizer
        self._name = getattr(tokenizer, "name_or_path", "") or type(tokenizer).__name__
        self._special = {*tokenizer.all_special_ids, *tokenizer.added_tokens_decoder}
        self.source, self.options = source, dict(options or {})
        today = datetime.date.today() if date is None else datetime.date.fromisoformat(date)
        self._dated_source = _TODAY.sub(lambda found: f"{found[1]}{today.strftime(found[2])}{found[1]}", source)
        self.date = None if self._dated_source == source else today.isoformat()
        self.system_role: Role = "system"
        self.tool_role: Role = "tool"
        self.merges_same_role = False
        self.thinking_field: str | None = None
        self._frames: dict[tuple[Role, ...], list[str] | None] = {}
        self._marks = [  # what closes gpt-oss's reasoning closes turns elsewhere
            marks
            for marks in THOUGHT_MARKS
            if marks is THOUGHT_MARKS[0] or (marks[1] in source and (marks[0] in source or marks[1] != "<|end|>"))
        ]
        self._opened: tuple[str, str] | None = None
        if _computes_powers(source):
            reason = "it computes a power (**), which no message needs, and which may take for ever."
            raise EndlessTemplateError(str(self._refusal(reason)))
        with self._limited():
            self._probe()

    def _probe(self) -> None:
        """Find out how the template renders, with dummy conversations."""
        self._check_turns()
        self._opened = self._open_thinking(self.text(_DUMMY[:1]))
        self.stop_id = self._find_stop()
        self.stop_text = str(self._tokenizer.convert_ids_to_tokens(self.stop_id))
        self._check_header()
        self.merges_same_role = self._render_roles("user", "assistant", "user", "user") is None
        self._find_system_role()
        self.render_mode, self.note = self._find_roles()

    @contextmanager
    def _limited(self) -> Iterator[None]:
        """Refuse a template that takes unreasonably long for a few short turns, or writes unreasonably much."""
        try:
            with time_limit(_PROBE_SECONDS), memory_limit(_PROBE_BYTES):
                length = len(self.text(_DUMMY[:1]))
                if length > _PROBE_CHARACTERS:
                    reason = f"it writes {length:,} characters for a question of {len(_USER)}."
                    raise EndlessTemplateError(str(self._refusal(reason)))
                yield
        except TimeLimitError:
            reason = f"it takes more than {_PROBE_SECONDS} s to render a few short turns."
            raise EndlessTemplateError(str(self._refusal(reason))) from None
        except MemoryError:
            reason = f"it takes more than {_PROBE_BYTES / 2**30:g} GiB of memory to render a few short turns."
            raise EndlessTemplateError(str(self._refusal(reason))) from None

    def text(self, messages: Sequence[Message], *, open_turn: bool = True) -> str:
        """Return the rendering of a conversation.

        Args:
            messages: the conversation.
            open_turn: whether the header of the next model turn follows.

        Raises:
            ConfigurationError: the template refuses it.
        """
        rows = self._rows(messages)
        options = {**self.options, **self._listed(), "tokenize": False, "add_generation_prompt": open_turn}
        try:
            return str(
                self._tokenizer.apply_chat_template(
                    _joined(rows) if self.merges_same_role else rows, chat_template=self._dated_source, **options
                )
            )
        except MemoryError:
            raise
        except Exception as error:  # templates raise any kind of error
            roles, reason = ", ".join(row["role"] for row in rows), str(error).strip(" .")[:200]
            raise ConfigurationError(
                f"The chat template of {self._name!r} does not render a conversation of {roles} turns: {reason}."
            ) from error

    def gap(self, messages: Sequence[Message], turn: Message | None = None) -> str:
        """Return what follows a model's turn and its end; the template is run once per sequence of roles.

        Args:
            messages: of the environment.
            turn: the turn; not needed where calls are part of the text.
        """
        roles = tuple(message.role for message in messages)
        if roles not in self._frames:
            self._frames[roles] = self._find_frame(roles)
        frame = self._frames[roles]
        return self._rendered_gap(messages) if frame is None else framed(frame, [m.content for m in messages])

    def model_text(self, rendered: str, turn: Message) -> str:
        """Return what of a turn the model itself wrote, without the token that ends it.

        Args:
            rendered: what stood before; it may have opened the thinking.
            turn: the turn.
        """
        content = turn.content
        for opening, _ in self._marks:
            if rendered.rstrip().endswith(opening) and content.lstrip().startswith(opening):
                return content.lstrip().removeprefix(opening).lstrip("\n")
        return content

    def rewrites(self, history: Sequence[Message], *, new: int) -> bool:
        """Return whether a history, rendered anew, is not what the model saw with the latest messages behind it.

        Args:
            history: ends with a model's turn and `new` messages more.
            new: what came after the turn.
        """
        if self.render_mode == "exact":
            return False
        at = len(history) - new - 1
        before, turn, replies = history[:at], history[at], history[at + 1 :]
        rendered = self.text(before)
        return self.text(history) != rendered + self.model_text(rendered, turn) + self.stop_text + self.gap(replies)

    def stop_of(self, turn: Message | None) -> int:
        """Return the token that the template puts after a turn; None: any turn without structured calls."""
        return self.stop_id

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """Tokens that the template puts after model turns."""
        return (self.stop_id,)

    def action(self, text: str, *, ended: bool) -> str:
        """Return a sampled turn as an action.

        Args:
            text: the turn, without the token that ended it.
            ended: whether it was ended by one.
        """
        return text

    def message(self, action: str) -> Message:
        """Return an action as a turn of the history."""
        return Message("assistant", action)

    def turn_text(self, action: str) -> str:
        """Return the text of a turn that `action` reads as this action."""
        return action

    def expresses(self, message: Message) -> bool:
        """Return whether the calls of a message, written as the model would, are read as the same calls."""
        return True

    def _listed(self) -> dict[str, Any]:
        """Return the tools that prompts list, as an argument of the template."""
        return {}

    def _rows(self, messages: Sequence[Message]) -> list[dict[str, Any]]:
        """Return messages as the template takes them."""
        return [self._row(message) for message in messages]

    def _row(self, message: Message) -> dict[str, Any]:
        if message.role != "assistant":
            roles = {"tool": self.tool_role, "system": self.system_role}
            return {"role": roles.get(message.role, message.role), "content": message.content}
        row: dict[str, Any] = {"role": "assistant", "content": message.content}
        if message.tool_calls:
            row["tool_calls"] = message.to_dict()["tool_calls"]
        for opening, closing in self._marks:
            thinking, closed, rest = message.content.partition(closing)
            if not closed or (opening not in thinking and self._opened != (opening, closing)):
                continue
            if opening not in thinking:
                row["content"] = f"{opening}\n{message.content}"
            if self.thinking_field is not None:
                row |= {self.thinking_field: thinking.replace(opening, "").strip("\n"), "content": rest.lstrip("\n")}
        return row

    def _render_roles(self, *roles: Role, open_turn: bool = True) -> str | None:
        """Return a rendering of `roles`; None if the template refuses, loses or moves a message."""
        messages = [Message(role, f"{number}{_REPLY}") for number, role in enumerate(roles)]
        try:
            text = self.text(messages, open_turn=open_turn)
        except ConfigurationError:
            return None
        positions = [text.find(message.content) for message in messages]
        return text if -1 not in positions and positions == sorted(positions) else None

    def _check_turns(self) -> None:
        """Refuse a template that loses text."""
        for roles in (("user", "assistant"), ("user", "assistant", "user")):
            if self._render_roles(*roles, open_turn=len(roles) > 2) is not None:
                continue
            self.text([Message(role, _REPLY) for role in roles], open_turn=len(roles) > 2)  # raises the reason
            raise self._refusal(
                "it rewrites earlier turns when later ones follow, so that text is lost."
                if len(roles) > 2
                else "it does not show the text of a user and a model turn (it may want lists of parts, as for images)."
            )

    def _find_stop(self) -> int:
        """Return the token that the template puts after a model turn."""
        after = self.text(_DUMMY, open_turn=False).partition(_MODEL)[2]
        ids = self._tokenizer(after.lstrip(), add_special_tokens=False)["input_ids"]
        if not ids or ids[0] not in self._special:
            raise self._refusal(f"no special token ends a model turn (after it comes {after!r:.40}).")
        return int(ids[0])

    def _check_header(self) -> None:
        """Refuse a template whose prompt is not what stands before the text of an earlier turn.

        The prompt may open the thinking, or close it at once, and the history may have an empty one.
        """
        prompt, header = self.text(_DUMMY[:1]), self.text(_DUMMY, open_turn=False).partition(_MODEL)[0]
        opened, rendered = self._plain(prompt), self._plain(header)
        if not opened.startswith(rendered):
            rest = header[len(prompt) :] if header.startswith(prompt) else header[-40:]
            raise self._refusal(f"its history puts {rest!r} before a turn's text, which the prompt does not hold.")
        self._after_model_turn(self.text([*_DUMMY, Message("user", _REPLY)]))

    def _find_system_role(self) -> None:
        """Join the system prompt to the first user turn where the template refuses it, or moves it later."""
        first, longer = self._render_roles("system", "user"), self._render_roles("system", "user", "assistant", "user")
        kept = first is not None and longer is not None and longer.startswith(first.partition(f"1{_REPLY}")[0])
        if not kept:
            self.system_role, self.merges_same_role = "user", True

    def _find_roles(self) -> tuple[RenderMode, str]:
        """Take the first way to hand over tool output and thinking in which the template is exact; else the first."""
        results: dict[tuple[Role, str | None], tuple[RenderMode, str]] = {}
        for role in _TOOL_ROLES:
            for field in _THINKING_FIELDS:
                self._configure(role, field)
                if role == "user" or self._takes_tools():
                    results[role, field] = self._classify()
            if any(render_mode == "exact" for render_mode, _ in results.values()):
                break
        best = min(results, key=lambda way: (results[way][0] != "exact", results[way][1] != ""))  # the first of equals
        self._configure(*best)
        return results[best]

    def _configure(self, tool_role: Role, thinking_field: str | None) -> None:
        self.tool_role, self.thinking_field = tool_role, thinking_field
        self._frames.clear()

    def _takes_tools(self) -> bool:
        return all(self._render_roles("user", "assistant", *roles) is not None for roles in _REPLIES)

    def _classify(self) -> tuple[RenderMode, str]:
        """Return verdict and note of the way that is set."""
        note = ""
        for marks in (None, *self._marks):
            for seen, served in self._conversation(marks):
                if self._plain(seen) != self._plain(served):
                    return "rewritten", self._difference(seen, served)
                if seen != served and not note:
                    same = "".join(seen.split()) == "".join(served.split())
                    note = "white space differs" if same else "empty thinking is added or left out"
        return "exact", note

    def _conversation(self, marks: tuple[str, str] | None) -> Iterator[tuple[str, str]]:
        """Play a conversation, and yields after each turn what the model has seen, and the history rendered anew."""
        history = [Message("system", "0sys"), Message("user", _USER)]
        seen = self.text(history)
        for number, roles in enumerate(_REPLIES):
            turn = _turn(seen, f"{number}{_MODEL}", marks or self._open_thinking(seen))
            replies = [Message(role, f"{number}{at}{_REPLY}") for at, role in enumerate(roles)]
            history += [Message("assistant", turn), *replies]
            seen += turn + self.stop_text + self.gap(replies)
            yield seen, self.text(history)

    def _open_thinking(self, rendered: str) -> tuple[str, str] | None:
        return next((marks for marks in self._marks if rendered.rstrip().endswith(marks[0])), None)

    def _plain(self, text: str) -> str:
        """Return text without white space and empty thinking, and without thinking that is opened at its end."""
        text = "".join(text.split())
        for opening, closing in self._marks:
            text = text.replace(opening + closing, "").removesuffix(opening)
        return text

    def _difference(self, seen: str, served: str) -> str:
        if _THOUGHT in seen and seen.count(_THOUGHT) > served.count(_THOUGHT):
            return "drops the thinking of earlier turns"
        at = next((n for n, (a, b) in enumerate(zip(seen, served, strict=False)) if a != b), len(served))
        return f"shows {served[at : at + 30]!r} in earlier turns where the model saw {seen[at : at + 30]!r}"

    def _rendered_gap(self, messages: Sequence[Message]) -> str:
        return self._after_model_turn(self.text([*_DUMMY, *messages]))

    def _find_frame(self, roles: Sequence[Role]) -> list[str] | None:
        """Return what the template puts around the contents, None if it does not show them as they are."""
        frame = self._rendered_gap([Message(role, _REPLY) for role in roles]).split(_REPLY)
        plain = len(frame) == len(roles) + 1 and all(
            self._rendered_gap([Message(role, probe) for role in roles]) == framed(frame, [probe] * len(roles))
            for probe in PROBES
        )
        return frame if plain else None

    def _after_model_turn(self, rendered: str) -> str:
        """Return what follows the dummy model turn and its end."""
        _, found, after = rendered.partition(_MODEL)
        after = after.lstrip()
        if not found or not after.startswith(self.stop_text):
            raise self._refusal(f"it does not end an earlier model turn with {self.stop_text!r}, as it ends the last.")
        return after[len(self.stop_text) :]

    def _refusal(self, reason: str) -> ConfigurationError:
        return ConfigurationError(
            f"The chat template of {self._name!r} cannot be used for multi-turn episodes: {reason}"
        )


def _turn(rendered: str, text: str, marks: tuple[str, str] | None) -> str:
    """Return a turn as a model writes it, with thinking between `marks`."""
    if marks is None:
        return text
    opening = "" if rendered.rstrip().endswith(marks[0]) else f"{marks[0]}\n"
    return f"{opening}{_THOUGHT}\n{marks[1]}\n\n{text}"


def _joined(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the messages with neighbouring user turns made one."""
    joined: list[dict[str, Any]] = []
    for row in rows:
        if joined and joined[-1]["role"] == row["role"] == "user":
            joined[-1] = {**row, "content": f"{joined[-1]['content']}\n\n{row['content']}"}
        else:
            joined.append(row)
    return joined


def framed(frame: Sequence[str], contents: Sequence[str]) -> str:
    """Return contents with what a template puts before, between and after them."""
    return "".join(chain.from_iterable(zip_longest(frame, contents, fillvalue="")))


@contextmanager
def memory_limit(size: int) -> Iterator[None]:
    """Limit what this process may allocate in addition; only on Linux.

    Raises:
        MemoryError: whatever runs needs more.
    """
    try:
        import resource

        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
        before = resource.getrlimit(resource.RLIMIT_AS)
    except (ImportError, OSError):
        yield
        return
    limits = (pages * resource.getpagesize() + size, *before)
    least = min(limit for limit in limits if limit != resource.RLIM_INFINITY)
    resource.setrlimit(resource.RLIMIT_AS, (least, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def _computes_powers(source: str) -> bool:
    """Return whether a template has the operator **: one power can take hours, in which nothing interrupts Python."""
    last = ""
    try:
        for _, kind, token in Environment().lex(source):
            if kind == "operator" and token == "**" and last not in ("(", ","):  # there it unpacks arguments
                return True
            last = last if kind == "whitespace" else token
    except TemplateSyntaxError:  # reported where it is rendered
        pass
    return False


logger = logging.getLogger(__name__)


def choose_template(
    tokenizer: Any, options: Mapping[str, Any] | None = None, *, date: str | None = None
) -> ChatTemplate:
    """Return the tokenizer's own template if it is exact; else TRL's variant for training, if that is better.

    Args:
        tokenizer: has a template.
        options: further arguments of `apply_chat_template`.
        date: see `ChatTemplate`.

    Raises:
        ConfigurationError: the tokenizer's template is refused, and TRL has none for it; with what to do.
    """
    source = str(tokenizer.get_chat_template())
    refusal: ConfigurationError | None = None
    try:
        own = ChatTemplate(tokenizer, source, options=options, date=date)
    except EndlessTemplateError:
        raise
    except ConfigurationError as error:
        refusal = error
    if refusal is None and own.render_mode == "exact":
        return own
    for name in _training_variants(tokenizer, source, options):
        try:
            variant = ChatTemplate(tokenizer, trl_templates()[name], options=options, date=date)
        except ConfigurationError:
            continue
        if variant.render_mode == "exact" or refusal is not None:
            logger.warning("The chat template does not keep earlier turns; %s, TRL's variant, takes its place.", name)
            return variant
    if refusal is not None:
        raise ConfigurationError(f"{refusal} {suggest_fixes(tokenizer, source, options)}") from refusal
    logger.warning(
        "The chat template %s: each history that it changes is rendered anew, as a separate context, which costs a "
        "forward and backward pass more. %s",
        own.note,
        suggest_fixes(tokenizer, source, options),
    )
    return own


def read_template(name: str) -> str:
    """Return the template in a file, or of that name among TRL's.

    Args:
        name: path of a jinja file, or the name of one of TRL's, such as `qwen3_training.jinja`.

    Raises:
        ConfigurationError: there is no such file.
    """
    path = Path(name)
    if path.is_file():
        try:
            return path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigurationError(f"chat_template={name!r} cannot be read: {error}") from error
    if name in trl_templates():
        return trl_templates()[name]
    # By their stems: the names of all files are alike in their ends.
    stems = [known.removesuffix(".jinja") for known in trl_templates()]
    near = difflib.get_close_matches(name.removesuffix(".jinja"), stems, n=3)
    hint = f"Did you mean {' or '.join(repr(f'{stem}.jinja') for stem in near)}?" if near else ""
    listed = hint or f"TRL's are: {', '.join(sorted(trl_templates())) or 'none, for it is not installed'}."
    raise ConfigurationError(f"chat_template={name!r} is not a file, nor one of TRL's. {listed}")


@cache
def trl_templates() -> Mapping[str, str]:
    """Return the templates that TRL ships, by file name; none where it is not installed."""
    spec = importlib.util.find_spec("trl")  # does not import it
    folders = [Path(position) / "chat_templates" for position in (spec and spec.submodule_search_locations) or ()]
    files = (path for folder in folders for path in sorted(folder.glob("*.jinja")))
    return {path.name: path.read_text(encoding="utf-8") for path in files}


def suggest_fixes(tokenizer: Any, source: str, options: Mapping[str, Any] | None) -> str:
    """Return what to do about a template that is not exact: an option of its own, or TRL's files that fit."""
    for option, value in _KEEPING.items():
        if option in source and _is_exact(tokenizer, source, {**(options or {}), option: value}):
            word = str(value).lower()
            return f"""To keep earlier turns whole, set chat_template_kwargs to {{"{option}": {word}}}."""
    training = [
        name for name in trl_templates() if name.endswith(_TRAINING) and _knows(tokenizer, trl_templates()[name])
    ]
    fitting = [name for name in training if _is_exact(tokenizer, trl_templates()[name], options)]
    listed = f" or one of TRL's that fit this tokenizer: {', '.join(fitting)}" if fitting else ""
    return f"To render otherwise, set chat_template to a file of your own{listed} (see docs/chat_templates.md)."


def _knows(tokenizer: Any, source: str) -> bool:
    """Return whether all markup in a template is special to a tokenizer."""
    special = {token.content for token in tokenizer.added_tokens_decoder.values()}
    return special.issuperset(re.findall(r"<[|｜][^<>\s{}'\"]+[|｜]>|<(?:start|end)_of_turn>", _normalised(source)))


def _is_exact(tokenizer: Any, source: str, options: Mapping[str, Any] | None) -> bool:
    try:
        return ChatTemplate(tokenizer, source, options=options).render_mode == "exact"
    except ConfigurationError:
        return False


def _training_variants(tokenizer: Any, source: str, options: Mapping[str, Any] | None) -> Iterator[str]:
    """Yield the names of TRL's training variants of a template: those of its text first, then those that look alike.

    Re-uploads differ from what TRL knows by comments and line ends, so what counts is what comes out.
    """
    pairs = {name: name.replace(".jinja", _TRAINING) for name in trl_templates()}
    pairs = {original: training for original, training in pairs.items() if training in trl_templates()}
    for name in [name for name in pairs if _normalised(trl_templates()[name]) == _normalised(source)]:
        yield pairs.pop(name)
    rendered = _renderings(tokenizer, source, options)
    for name, training in pairs.items():
        if _renderings(tokenizer, trl_templates()[name], options) == rendered:
            yield training


def _renderings(tokenizer: Any, source: str, options: Mapping[str, Any] | None) -> list[str]:
    fixed = {**(options or {}), "chat_template": source, "tokenize": False, "add_generation_prompt": True}

    def rendering(chat: list[dict[str, Any]]) -> str:
        try:
            return str(tokenizer.apply_chat_template(chat, **fixed))
        except Exception as error:  # of the template's own making: two that refuse alike are alike
            return f"{type(error).__name__}: {error}"

    return [rendering(chat) for chat in _CONVERSATIONS]


def _normalised(source: str) -> str:
    """Return a template without comments and the white space around it."""
    return re.sub(r"\{#.*?#\}", "", source, flags=re.DOTALL).strip()
