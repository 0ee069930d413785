"""ChatFormat: gaps between turns are what the template would render, and unfit templates are refused."""

from __future__ import annotations

from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from agent_r1_gym.errors import ConfigurationError
from agent_r1_gym.types import Message
from trainers.chat_format import ChatFormat
from trainers.tiny import build_tokenizer

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
NO_TOOL_ROLE = (
    "{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('role') }}{% endif %}"
    "{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
REWRITES = (
    "{% for m in messages %}{% if m.role == 'assistant' and not loop.last %}<|im_start|>assistant\nearlier<|im_end|>"
    "{% else %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
NO_END = "{% for m in messages %}{{ m.role + ': ' + m.content + '\n' }}{% endfor %}"


def tokenizer_with(template: str | None) -> Any:
    tokenizer = build_tokenizer()
    tokenizer.chat_template = template
    return tokenizer


@pytest.mark.parametrize("template", [None, CHATML], ids=["own", "chatml"])
@pytest.mark.parametrize("stopped", [True, False])
def test_gap_continues_the_rendering_of_the_whole_history(template: str | None, stopped: bool) -> None:
    tokenizer = build_tokenizer() if template is None else tokenizer_with(template)
    chat = ChatFormat(tokenizer)
    history = [Message("user", "who is it")]
    new = [Message("tool", "nothing found", name="search"), Message("user", "error no_action")]
    turn = tokenizer("yes", add_special_tokens=False)["input_ids"]
    sampled = [*turn, chat.stop_id] if stopped else turn
    ids = [*chat.prompt_ids(history), *sampled, *chat.gap_ids(new, stopped=stopped)]
    whole = [{"role": m.role, "content": m.content} for m in (*history, Message("assistant", "yes"), *new)]
    assert ids == tokenizer.apply_chat_template(whole, add_generation_prompt=True, return_dict=False)


def test_action_is_the_turn_without_its_end() -> None:
    tokenizer = build_tokenizer()
    chat = ChatFormat(tokenizer)
    text = '<tool_call>\n{"name": "search", "arguments": {"query": "who"}}\n</tool_call>'
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert chat.action([*ids, chat.stop_id]) == text
    assert chat.action(ids) == text
    assert chat.action([chat.stop_id]) == ""
    assert chat.action([]) == ""


def test_tool_turns_become_user_turns_where_the_template_knows_no_tools() -> None:
    chat = ChatFormat(tokenizer_with(NO_TOOL_ROLE))
    gap = chat.gap_ids([Message("tool", "nothing found")], stopped=True)
    assert gap == chat.gap_ids([Message("user", "nothing found")], stopped=True)


@pytest.mark.parametrize(
    ("template", "words"),
    [(None, "no chat template"), (REWRITES, "rewrites earlier turns"), (NO_END, "no special token")],
)
def test_unfit_templates_are_refused(template: str | None, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        ChatFormat(tokenizer_with(template))


@pytest.mark.parametrize("token", ["eos_token", "pad_token"])
def test_missing_special_tokens_are_refused(token: str) -> None:
    tokenizer = build_tokenizer()
    setattr(tokenizer, token, None)
    with pytest.raises(ConfigurationError, match=token):
        ChatFormat(tokenizer)


TRIMS = CHATML.replace("m.content +", "(m.content | trim) +")


@pytest.mark.parametrize("template", [None, CHATML, TRIMS], ids=["own", "chatml", "trims"])
@pytest.mark.parametrize("content", ["", " a\n", '"\\n"', "<é>", "7fa2r", "<tool_response>\nx\n</tool_response>"])
def test_a_gap_is_what_the_template_renders_for_any_content(template: str | None, content: str) -> None:
    tokenizer = build_tokenizer() if template is None else tokenizer_with(template)
    chat = ChatFormat(tokenizer)
    new = [Message("tool", content), Message("user", "who")]
    for _ in range(2):  # at first the template is run, then what it puts around the contents is known
        ids = chat.gap_ids(new, stopped=True)
        turns = [
            {"role": role, "content": text} for role, text in (("assistant", "yes"), ("tool", content), ("user", "who"))
        ]
        rendered = tokenizer.apply_chat_template(turns, add_generation_prompt=True, tokenize=False)
        after = rendered.split("yes<|im_end|>", 1)[1]
        assert ids == tokenizer(after, add_special_tokens=False)["input_ids"]


def test_the_template_is_run_once_per_sequence_of_roles(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = build_tokenizer()
    chat = ChatFormat(tokenizer)
    chat.gap_ids([Message("tool", "a")], stopped=True)
    prompt = chat.prompt_ids([Message("user", "who is it")])
    monkeypatch.setattr(tokenizer, "apply_chat_template", None)
    chat.gap_ids([Message("tool", "b c")], stopped=True)
    prompt.append(0)  # what a caller does to its list does not reach the next copy
    assert chat.prompt_ids([Message("user", "who is it")]) == prompt[:-1]
    with pytest.raises(TypeError):
        chat.gap_ids([Message("tool", "b"), Message("tool", "c")], stopped=True)


def test_padding_and_truncation_of_the_tokenizer_do_not_reach_the_tokens() -> None:
    tokenizer = build_tokenizer()
    tokens = ChatFormat(tokenizer)
    before = tokens.prompt_ids([Message("user", "a question that is longer than two tokens")])
    tokenizer(["a b c d e"], padding="max_length", max_length=2, truncation=True)
    after = ChatFormat(tokenizer).prompt_ids([Message("user", "a question that is longer than two tokens")])
    assert before == after == tokens.prompt_ids([Message("user", "a question that is longer than two tokens")])
    assert len(before) > 2


def test_a_tokenizer_whose_own_code_changes_tokens_is_asked_itself() -> None:
    class Odd(PreTrainedTokenizerFast):
        def _decode(self, *arguments: Any, **options: Any) -> str:
            return super()._decode(*arguments, **options).replace("a", "A")

    plain = build_tokenizer()
    odd = Odd(tokenizer_object=plain.backend_tokenizer, eos_token=plain.eos_token, pad_token=plain.pad_token)
    odd.chat_template = plain.chat_template
    ids = plain("ana", add_special_tokens=False)["input_ids"]
    assert ChatFormat(plain).action(ids) == "ana"
    assert ChatFormat(odd).action(ids) == "AnA"
