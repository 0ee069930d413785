"""ChatFormat: where text becomes tokens, the same for training, supervised rows, evaluation and serving.

A trajectory is never tokenised again: the model's tokens stay as they were sampled, and the environment's text is
tokenised where it is appended, as the prompt or as the gap between two turns. `chat_format.json`, saved with a model,
records how; evaluation and further training read it back.
"""

from __future__ import annotations

import copy
import datetime
import functools
import itertools
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from agent_r1_gym.core.text import special_tokens
from agent_r1_gym.core.types import Message, ToolCall
from agent_r1_gym.errors import ConfigurationError
from agent_r1_gym.run.evaluation.agent_card import ADAPTER_FILE
from agent_r1_gym.run.model_folder import read_adapter
from agent_r1_gym.support.files import atomic_file
from agent_r1_gym.support.json_data import parse_json
from trainers.rollouts.chat_template import ChatTemplate, EndlessTemplateError, choose_template, read_template
from trainers.rollouts.tool_template import ToolTemplate

FILE, TEMPLATE_FILE = "chat_format.json", "chat_format.jinja"
_VERSION = 2
_MAX_BOUND = 64
"""Sets of tools whose prompts are kept."""
_OLD_KEYS = {"joins": "merges_same_role", "verdict": "render_mode"}
"""Keys of version 1, which 0.2 wrote."""
_TEXTS = (" \n\"a\\b'<é>\n ", "<think>a</think>\n", "4be7u", " a")
"""What a copy of a tokenizer's core must turn into the same tokens as the tokenizer itself."""

Encode = Callable[[str], list[int]]
Decode = Callable[[Sequence[int]], str]
IdsAndMask = tuple[list[int], list[int]]
"""Token ids, and a mask: 1 where the model wrote the token."""


class ChatFormat:
    """Renders messages with a tokenizer and a chat template.

    Args:
        tokenizer: a transformers tokenizer with an eos and a pad token; nothing is changed in it, then or later.
        template: jinja source; None: the tokenizer's own, or TRL's variant of it (see `choose_template`).
        template_options: further arguments of `apply_chat_template` (such as `enable_thinking`).
        more_stops: ids that end a turn in addition to the template's token and eos, such as those of a generation
            config.
        date: the day that the template prints as today's, if it prints one; None: today (see `ChatTemplate`).

    Attributes:
        tokenizer: see above.
        template: how messages become text.

    Raises:
        ConfigurationError: no template, no eos or pad token, or a template that cannot play several turns.
    """

    def __init__(
        self,
        tokenizer: Any,
        *,
        template: str | None = None,
        template_options: Mapping[str, Any] | None = None,
        more_stops: Iterable[int] = (),
        date: str | None = None,
    ) -> None:
        _check_tokenizer(tokenizer, template)
        self.tokenizer = tokenizer
        self._refusal: ConfigurationError | None = None
        self._tools: ToolTemplate | None = None
        self._bound: dict[str, ChatFormat] = {}
        try:
            self.template = (
                choose_template(tokenizer, template_options, date=date)
                if template is None
                else ChatTemplate(tokenizer, template, options=template_options, date=date)
            )
        except EndlessTemplateError:
            raise
        except ConfigurationError as refusal:  # gpt-oss: only its own tool format can be played
            self.template = _only_with_tools(tokenizer, template, template_options, refusal, date=date)
            self._refusal = refusal
        self._more_stops = tuple(more_stops)
        self._encode, self._decode = _codec(tokenizer)
        self._last_prompt: tuple[tuple[Message, ...], list[int]] = ((), [])

    @property
    def stop_id(self) -> int:
        """The template's end of a model turn."""
        return self.template.stop_id

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """Tokens that end a model turn: the template's ends of turns, the tokenizer's eos, and `more_stops`."""
        of_calls = () if self._tools is None else self._tools.stop_ids
        stops = (*self.template.stop_ids, int(self.tokenizer.eos_token_id), *self._more_stops, *of_calls)
        return tuple(dict.fromkeys(stops))

    @property
    def markup(self) -> tuple[str, ...]:
        """Texts of the tokenizer's special tokens, none of which a document may forge."""
        return special_tokens(self.tokenizer)

    def with_tools(self, tools: Sequence[Mapping[str, Any]]) -> ChatFormat:
        """Return this format with the model's own tool format: structured calls, of these tools.

        Args:
            tools: schemas of an episode's tools.

        Raises:
            ConfigurationError: the template has no tool format, or none that can be read; with the way out.
        """
        key = json.dumps(tools, ensure_ascii=False)
        if self._tools is None:
            template = self.template
            self._tools = (
                template
                if isinstance(template, ToolTemplate)
                else ToolTemplate(self.tokenizer, template.source, options=template.options, date=template.date)
            )
        chat = self._bound.get(key)
        if chat is None:
            chat = copy.copy(self)
            chat.template = self._tools.bind(tools)
            chat._bound, chat._refusal, chat._last_prompt = {}, None, ((), [])
            if len(self._bound) >= _MAX_BOUND:  # environments whose tools differ from task to task
                self._bound.clear()
            self._bound[key] = chat
        return chat  # another thread may have cleared them

    def check_plain(self) -> None:
        """Refuse a template with which only the model's own tool format can be played.

        Raises:
            ConfigurationError: it is such a template.
        """
        if self._refusal is not None:
            raise ConfigurationError(f"{self._refusal} Or use the model's own tool format: parser='native'.")

    def write_call(self, call: ToolCall) -> str:
        """Return a call as the model would write it, of a format with tools (see `with_tools`)."""
        return self.template.model_text("", Message("assistant", "", tool_calls=(call,)))

    def prompt_ids(self, messages: Sequence[Message]) -> list[int]:
        """Return the tokens of a history up to the header of the next model turn."""
        self.check_plain()
        last, ids = self._last_prompt
        if last != tuple(messages):  # the copies of a row stand together
            last, ids = tuple(messages), self._encode(self.template.text(messages))
            self._last_prompt = last, ids
        return list(ids)

    def between_turns_ids(
        self, messages: Sequence[Message], *, stopped: bool, turn: Message | None = None
    ) -> list[int]:
        """Return the tokens between a model turn and the next: end of turn, `messages`, and the next header.

        Args:
            messages: of the environment.
            turn: the turn; None: one without structured calls.
            stopped: whether the model sampled the template's end of turn itself (see `ended`). If not, the gap begins
                with it: sampled or not, it stands at the end of every earlier turn that the model is shown.
        """
        gap = self._encode(self.template.gap(messages, turn))
        return gap if stopped else [self.template.stop_of(turn), *gap]

    def ended(self, ids: Sequence[int], turn: Message | None = None) -> bool:
        """Return whether a sampled turn ends as the template ends it: not cut, and by no other token, such as eos."""
        return bool(ids) and ids[-1] == self.template.stop_of(turn)

    def rewrites(self, history: Sequence[Message], *, new: int) -> bool:
        """Return whether the context must be rendered anew (by `prompt_ids`), for a gap would not be what is served.

        Args:
            history: all messages so far: ends with a model's turn and `new` messages more.
            new: number of messages after the turn.
        """
        return self.template.rewrites(history, new=new)

    def action(self, ids: Sequence[int]) -> str:
        """Return a sampled turn as an action: its text, without the token that ended it, or the structured message."""
        ended = bool(ids) and ids[-1] in self.stop_ids
        return self.template.action(self._decode(ids[:-1] if ended else ids), ended=ended)

    def turn_ids(self, action: str) -> list[int]:
        """Return the tokens of a turn that `action` reads as this action, with the token that ends it."""
        text = self.template.turn_text(action)
        return [*self._encode(text), self.template.stop_of(self.template.message(action))]

    def roundtrip(self, action: str) -> str:
        """Return what becomes of an action that is written as tokens and read again: itself, where nothing is lost."""
        return self.action(self.turn_ids(action))

    def encode(self, messages: Sequence[Message]) -> IdsAndMask:
        """Return a history as tokens, and a mask that is 1 on what the model wrote, ends of turn included.

        What follows the last model turn is excluded. A turn that repeats the opening of thinking with which the prompt
        ends is taken without it.

        Raises:
            ConfigurationError: no model turn, two in a row, structured calls, or a history that the template rewrites:
                then it is `encode_rows` that shows each turn after what it was written after.
        """
        rows = self.encode_rows(messages)
        if len(rows) > 1:
            raise ConfigurationError(
                f"The chat template {self.template.note}, so a history of several turns is not a single row. Take one "
                "row for each turn (encode_rows), or another template."
            )
        return rows[0]

    def encode_rows(self, messages: Sequence[Message], *, opening: int = 0) -> list[IdsAndMask]:
        """Return a history as `encode` does, in as many rows as the template makes contexts of it, mostly one.

        Args:
            messages: the history.
            opening: how many of its messages are only read, model turns among them (see `Context.num_prompt_messages`).
        """
        self.check_plain()
        turns = _turns(messages, opening, structured=isinstance(self.template, ToolTemplate))
        ids = self.prompt_ids(messages[: turns[0]])
        mask = [0] * len(ids)
        rendered = self.template.text(messages[: turns[0]])
        rows = [(ids, mask)]
        for turn, following in zip(turns, [*turns[1:], None], strict=True):
            message = messages[turn]
            written = [*self._encode(self.template.model_text(rendered, message)), self.template.stop_of(message)]
            ids += written
            mask += [1] * len(written)
            if following is None:
                break
            replies = messages[turn + 1 : following]
            if self.rewrites(messages[:following], new=len(replies)):
                ids, rendered = self.prompt_ids(messages[:following]), self.template.text(messages[:following])
                mask = [0] * len(ids)
                rows.append((ids, mask))
                continue
            rendered = self.template.gap(replies, message)
            gap = self._encode(rendered)
            ids += gap
            mask += [0] * len(gap)
        return rows

    def save(self, folder: str | Path) -> None:
        """Write `chat_format.json` next to a saved model, and the template where the tokenizer has another."""
        own = self.tokenizer.chat_template is not None and self.template.source == self.tokenizer.get_chat_template()
        if not own:
            with atomic_file(Path(folder) / TEMPLATE_FILE) as temporary:
                temporary.write_text(self.template.source, encoding="utf-8")
        dated = {} if self.template.date is None else {"date": self.template.date}
        record = {"version": _VERSION, "template_file": None if own else TEMPLATE_FILE, **dated, **self._record()}
        with atomic_file(Path(folder) / FILE) as temporary:
            temporary.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")

    @classmethod
    def load(
        cls,
        name: str | Path,
        tokenizer: Any,
        *,
        template: str | None = None,
        template_options: Mapping[str, Any] | None = None,
        revision: str = "main",
        date: str | None = None,
    ) -> ChatFormat:
        """Load the format that was saved with a model; where there is none, one built from the tokenizer.

        An adapter without one has its base model's. Without any, a turn also ends with what `generation_config.json`
        names as ends.

        Args:
            name: folder or hub id of the model or adapter.
            tokenizer: the model's.
            template: takes the place of the saved one: a file, or the name of one of TRL's (see `read_template`).
            template_options: take the place of the saved ones.
            revision: revision of the hub's model.
            date: takes the place of the saved one.

        Raises:
            ConfigurationError: the saved format cannot be read, or renders otherwise with this tokenizer.
        """
        name = resolve_model_path(name, FILE)
        record, source = _saved(name, revision)
        options = record.get("template_options") if template_options is None else template_options
        if template is not None:
            source = read_template(template)
        elif record and source is None:
            source = str(tokenizer.get_chat_template()) if tokenizer.chat_template else None
        stops = record.get("stop_ids") if record else _generation_stops(name, revision)
        date = date or record.get("date")
        chat = cls(tokenizer, template=source, template_options=options, more_stops=stops or (), date=date)
        if record and template is None and template_options is None:
            chat._check_record(record, str(name))
        return chat

    def _record(self) -> dict[str, Any]:
        """Return what must come out the same when the format is read back, and what a reader may want to know."""
        names = ("system_role", "tool_role", "merges_same_role", "thinking_field", "render_mode", "note", "stop_text")
        parts = {name: getattr(self.template, name) for name in names}
        return {"template_options": self.template.options, "stop_ids": list(self.stop_ids), **parts}

    def _check_record(self, record: Mapping[str, Any], name: str) -> None:
        own = self._record()
        changed = [key for key in own if key != "note" and record.get(key) != own[key]]
        if changed:
            was = ", ".join(f"{key}={record.get(key)!r}" for key in changed)
            now = ", ".join(f"{key}={own[key]!r}" for key in changed)
            raise ConfigurationError(
                f"{name}: {FILE} records {was}, but this tokenizer and template give {now}. They were changed after "
                f"the format was saved: restore them, or name a template (chat_template), or remove {FILE}."
            )


def _check_tokenizer(tokenizer: Any, template: str | None) -> None:
    name = getattr(tokenizer, "name_or_path", "") or type(tokenizer).__name__
    if template is None and getattr(tokenizer, "chat_template", None) is None:
        raise ConfigurationError(
            f"The tokenizer {name!r} has no chat template; use an instruct model, or set chat_template to a file."
        )
    for token in ("eos_token_id", "pad_token_id"):
        if getattr(tokenizer, token) is None:
            raise ConfigurationError(f"The tokenizer {name!r} has no {token}; set it before training.")


def _only_with_tools(
    tokenizer: Any,
    source: str | None,
    options: Mapping[str, Any] | None,
    refusal: ConfigurationError,
    *,
    date: str | None,
) -> ChatTemplate:
    """Return the template with its tool format, where it is refused without; else raise the refusal."""
    try:
        return ToolTemplate(tokenizer, source or str(tokenizer.get_chat_template()), options=options, date=date)
    except ConfigurationError:
        raise refusal from None


def _turns(messages: Sequence[Message], opening: int, *, structured: bool) -> list[int]:
    """Return where the model's turns stand that come after the opening."""
    turns = [index for index, message in enumerate(messages) if message.role == "assistant"]
    if not turns or turns[0] == 0 or any(later == turn + 1 for turn, later in itertools.pairwise(turns)):
        raise ConfigurationError(
            "A history to learn from needs a model turn, each after what it answers, but the roles are: "
            f"{', '.join(message.role for message in messages) or 'none'}."
        )
    if not structured and any(messages[turn].tool_calls for turn in turns):
        raise ConfigurationError(
            "A turn to learn from is text, but one has tool_calls: write them as the model would, or encode them in "
            "the model's own tool format (ChatFormat.with_tools)."
        )
    return [turn for turn in turns if turn >= opening]


def resolve_model_path(name: str | Path, file: str) -> str | Path:
    """Return where a file of a model or adapter is: an adapter that was saved without it has its base model's."""
    adapter = Path(name) / ADAPTER_FILE
    if not adapter.is_file() or (Path(name) / file).is_file():
        return name
    return str(read_adapter(adapter.parent)["base_model_name_or_path"])


def saved_date(folder: str | Path) -> str | None:
    """Return the day that the chat format of a folder prints as today's; None where it prints or records none."""
    record, _ = _saved(folder, "main")
    return record.get("date")


def _saved(name: str | Path, revision: str) -> tuple[dict[str, Any], str | None]:
    """Return the record and the template that are saved with a model; empty and None where there is none."""
    path = _file_of(name, FILE, revision)
    if path is None:
        return {}, None
    try:
        record = parse_json(path.read_text(encoding="utf-8"))
        version, _, _ = record["version"], dict(record["template_options"]), [int(stop) for stop in record["stop_ids"]]
        if version == 1:
            record = {_OLD_KEYS.get(name, name): value for name, value in record.items()}
            version = _VERSION
        datetime.date.fromisoformat(record.get("date", "2000-01-01"))
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ConfigurationError(f"{path} is damaged ({error!r:.100}): copy it again, or remove it.") from error
    if version != _VERSION:
        raise ConfigurationError(f"{path} is of version {version!r}; this package reads version {_VERSION}. Update it.")
    if record.get("template_file") is None:
        return record, None
    template = _file_of(name, TEMPLATE_FILE, revision)
    if template is None:
        raise ConfigurationError(f"{path} names {TEMPLATE_FILE}, which is missing: copy it too.")
    return record, template.read_text(encoding="utf-8")


def _generation_stops(name: str | Path, revision: str) -> list[int]:
    """Return the ends of a text that a model's makers name."""
    path = _file_of(name, "generation_config.json", revision)
    try:
        stops = parse_json(path.read_text(encoding="utf-8")).get("eos_token_id") if path else None
    except (OSError, ValueError, AttributeError):  # transformers reports what is wrong with it when the model is loaded
        return []
    return [stop for stop in (stops if isinstance(stops, list) else [stops]) if isinstance(stop, int)]


def _file_of(name: str | Path, file: str, revision: str) -> Path | None:
    if Path(name).is_dir():
        path = Path(name) / file
        return path if path.is_file() else None
    from transformers.utils import cached_file  # type: ignore[attr-defined]

    try:
        cached = cached_file(str(name), file, revision=revision)
    except OSError:  # not on the hub, or not in its cache
        return None
    return None if cached is None else Path(cached)


def _codec(tokenizer: Any) -> tuple[Encode, Decode]:
    """Return a tokenizer's ways from text to tokens and back, past the layers of transformers if these add nothing.

    Then they stand on a copy of a fast tokenizer's core: others set padding and truncation on the original.
    """

    def encode(text: str) -> list[int]:
        return list(tokenizer(text, add_special_tokens=False)["input_ids"])

    def decode(ids: Sequence[int]) -> str:
        return str(tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False))

    try:
        core = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    except Exception:  # no fast tokenizer, or with parts written in Python; the library raises bare Exceptions
        return encode, decode
    core.no_padding()
    core.no_truncation()

    def encode_fast(text: str) -> list[int]:
        return list(core.encode(text, add_special_tokens=False).ids)

    decode_fast = functools.partial(core.decode, skip_special_tokens=False)
    for text in (*_TEXTS, "".join(tokenizer.all_special_tokens)):
        ids = encode(text)
        if encode_fast(text) != ids or decode_fast(ids) != decode(ids):
            return encode, decode
    return encode_fast, decode_fast
