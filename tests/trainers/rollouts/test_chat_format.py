"""ChatFormat: gaps between turns are what the template would render, and unfit templates are refused."""

from __future__ import annotations

import json
import re
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from agent_r1_gym.core.shots import Shot, ShotTurn
from agent_r1_gym.core.types import Message, ToolCall, ToolOutcome
from agent_r1_gym.errors import ConfigurationError
from agent_r1_gym.run.session import Job
from agent_r1_gym.run.token_session import TokenLimits, TokenSession
from tests.kit.chat_families import FAMILIES
from tests.kit.helpers import GivenTool, call, make_env, started
from tests.kit.samples import samples
from tests.trainers.rollouts.test_collect import CALL, LIMITS, EchoEnv, lookup_env, played
from trainers.algorithms.batch import tokens_of
from trainers.rollouts.chat_format import ChatFormat
from trainers.rollouts.chat_template import trl_templates
from trainers.toy.model import build_tokenizer

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


TRIMS = CHATML.replace("m.content +", "(m.content | trim) +")


@pytest.mark.parametrize("template", [None, CHATML, TRIMS], ids=["own", "chatml", "trims"])
@pytest.mark.parametrize("content", ["", " a\n", '"\\n"', "<é>", "7fa2r", "<tool_response>\nx\n</tool_response>"])
@samples("stopped", [True, False])
def test_a_gap_continues_the_rendering_of_the_whole_history(template: str | None, content: str, stopped: bool) -> None:
    tokenizer = build_tokenizer() if template is None else tokenizer_with(template)
    chat = ChatFormat(tokenizer)
    history = [Message("user", "who is it")]
    new = [Message("tool", content, name="search"), Message("user", "error no_action")]
    turn = tokenizer("yes", add_special_tokens=False)["input_ids"]
    sampled = [*turn, chat.stop_id] if stopped else turn
    whole = [{"role": m.role, "content": m.content} for m in (*history, Message("assistant", "yes"), *new)]
    for _ in range(2):  # at first the template is run, then what it puts around the contents is known
        ids = [*chat.prompt_ids(history), *sampled, *chat.between_turns_ids(new, stopped=stopped)]
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
    gap = chat.between_turns_ids([Message("tool", "nothing found")], stopped=True)
    assert gap == chat.between_turns_ids([Message("user", "nothing found")], stopped=True)


@samples(
    ("attribute", "value", "words"),
    [
        ("chat_template", None, "no chat template; use an instruct model"),
        ("chat_template", REWRITES, "rewrites earlier turns"),
        ("chat_template", NO_END, "no special token"),
        ("eos_token", None, "no eos_token_id"),
        ("pad_token", None, "no pad_token_id"),
    ],
)
def test_unfit_tokenizers_are_refused(attribute: str, value: str | None, words: str) -> None:
    tokenizer = build_tokenizer()
    setattr(tokenizer, attribute, value)
    with pytest.raises(ConfigurationError, match=words):
        ChatFormat(tokenizer)


def test_a_note_quotes_the_first_difference_between_a_turn_and_its_history() -> None:
    headed = REWRITES.replace("assistant\nearlier<|im_end|>", "assistant\nEarlier: {{ m.content }}<|im_end|>")
    note = ChatFormat(tokenizer_with(headed)).template.note
    found = re.fullmatch(r"shows 'Earlier: (\w+)<.*' in earlier turns where the model saw '(\w+)<.*'", note)
    assert found and found[1] == found[2]


def test_the_template_is_run_once_per_sequence_of_roles(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = build_tokenizer()
    chat = ChatFormat(tokenizer)
    chat.between_turns_ids([Message("tool", "a")], stopped=True)
    prompt = chat.prompt_ids([Message("user", "who is it")])
    monkeypatch.setattr(tokenizer, "apply_chat_template", None)
    chat.between_turns_ids([Message("tool", "b c")], stopped=True)
    prompt.append(0)  # what a caller does to its list does not reach the next copy
    assert chat.prompt_ids([Message("user", "who is it")]) == prompt[:-1]
    with pytest.raises(ConfigurationError, match="does not render"):
        chat.between_turns_ids([Message("tool", "b"), Message("tool", "c")], stopped=True)


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


# --- what a document may not forge -----------------------------------------------------------------------------------


@samples("name", ["Ling, Ring", "MiniMax-M1", "MiniMax-M2", "TRL llama3.jinja", "TRL gemma3.jinja"])
def test_no_special_token_of_a_tokenizer_comes_out_of_a_document(name: str, tmp_path: Path) -> None:
    chat = ChatFormat(FAMILIES[name].tokenizer(tmp_path))
    special = {index for index, token in chat.tokenizer.added_tokens_decoder.items() if token.special}
    assert {chat.tokenizer.convert_ids_to_tokens(index) for index in special} <= set(chat.markup)

    def specials_after(document: str) -> int:
        env = started(make_env(tools=[GivenTool(document)], markup=chat.markup))
        *_, info = env.step(call("given"))
        return sum(token in special for token in chat.between_turns_ids(info["new_messages"][1:], stopped=True))

    assert specials_after(" and ".join(chat.markup)) == specials_after("nothing")


# --- ends of turn ----------------------------------------------------------------------------------------------------


def test_the_gap_after_a_turn_that_eos_ended_holds_the_templates_end_of_turn(tmp_path: Path) -> None:
    tokenizer = FAMILIES["ChatML on a base model (eos is <|endoftext|>)"].tokenizer(tmp_path)
    chat, turn = ChatFormat(tokenizer), tokenizer.encode("yes", add_special_tokens=False)
    assert chat.stop_ids == tuple(tokenizer.convert_tokens_to_ids(["<|im_end|>", "<|endoftext|>"]))
    session = TokenSession(lookup_env(), Job(0), chat=chat, limits=LIMITS, executor=ThreadPoolExecutor(1))
    ids = [*turn, tokenizer.eos_token_id]
    gap = session.finish_turn(ids, [-1.0] * len(ids), True)
    assert chat.action(ids) == "yes"
    assert tokenizer.decode(gap).startswith("<|im_end|>\n<|im_start|>user\n")  # type: ignore[arg-type]
    mask = tokens_of(session.record()).loss_mask[: len(ids) + 1]
    assert mask == (*[1] * len(ids), 0)  # what was sampled is trained, eos too; what the template added is not


@samples("stopped", [True, False])
def test_feedback_says_that_the_token_limit_cut_a_turn(stopped: bool, tmp_path: Path) -> None:
    tokenizer = FAMILIES["ChatML on a base model (eos is <|endoftext|>)"].tokenizer(tmp_path)
    chat = ChatFormat(tokenizer)
    limits = TokenLimits(max_prompt_tokens=2_000, max_completion_tokens=2_000)
    env = lookup_env(feedback="full")
    session = TokenSession(env, Job(0), chat=chat, limits=limits, executor=ThreadPoolExecutor(1))
    ids = tokenizer.encode("<answer>yes", add_special_tokens=False) + [chat.stop_id] * stopped
    gap = tokenizer.decode(session.finish_turn(ids, [-1.0] * len(ids), stopped))  # type: ignore[arg-type]
    assert "<answer> is never closed" in gap
    assert ("The token limit cut the turn there: write less." in gap) is not stopped
    assert type(session.turns[0].action) is str


def test_ends_that_a_generation_config_names_end_turns_too(tmp_path: Path) -> None:
    tokenizer = FAMILIES["TRL llama3_1.jinja"].tokenizer(tmp_path)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [7, 9]}')
    chat = ChatFormat.load(tmp_path, tokenizer)
    assert chat.stop_ids == (chat.stop_id, 7, 9)
    chat.save(tmp_path)
    (tmp_path / "generation_config.json").unlink()
    assert ChatFormat.load(tmp_path, tokenizer).stop_ids == chat.stop_ids


# --- saved beside a model --------------------------------------------------------------------------------------------

QUESTION = [Message("user", "Who is it?")]


def test_template_and_options_come_back_from_a_folder(tmp_path: Path) -> None:
    tokenizer = FAMILIES["TRL qwen3.jinja"].tokenizer(tmp_path)
    chat = ChatFormat(tokenizer, template_options={"enable_thinking": False})
    chat.save(tmp_path)
    assert (tmp_path / "chat_format.jinja").read_text() == trl_templates()["qwen3_training.jinja"]
    again = ChatFormat.load(tmp_path, AutoTokenizer.from_pretrained(tmp_path))
    assert again.prompt_ids(QUESTION) == chat.prompt_ids(QUESTION)
    assert tokenizer.decode(again.prompt_ids(QUESTION)).endswith("<think>\n\n</think>\n\n")
    thinking = ChatFormat.load(tmp_path, tokenizer, template_options={})
    assert tokenizer.decode(thinking.prompt_ids(QUESTION)).endswith("assistant\n")


def test_the_date_that_a_template_prints_comes_back_from_a_folder(tmp_path: Path) -> None:
    tokenizer = FAMILIES["TRL llama3_2.jinja"].tokenizer(tmp_path)
    ChatFormat(tokenizer, date="2026-01-31").save(tmp_path)
    again = ChatFormat.load(tmp_path, tokenizer)
    assert "\nToday Date: 31 Jan 2026\n" in tokenizer.decode(again.prompt_ids(QUESTION))
    again.save(tmp_path)
    assert json.loads((tmp_path / "chat_format.json").read_text())["date"] == "2026-01-31"
    later = ChatFormat.load(tmp_path, tokenizer, date="2026-02-01")
    assert "\nToday Date: 01 Feb 2026\n" in tokenizer.decode(later.prompt_ids(QUESTION))
    path = tmp_path / "chat_format.json"  # as an earlier version saved it
    path.write_text(json.dumps({key: value for key, value in json.loads(path.read_text()).items() if key != "date"}))
    assert ChatFormat.load(tmp_path, tokenizer).stop_ids == again.stop_ids


def test_another_template_may_be_named_by_file_or_as_one_of_trls(tmp_path: Path) -> None:
    tokenizer = FAMILIES["TRL qwen3.jinja"].tokenizer(tmp_path)
    (tmp_path / "mine.jinja").write_text(CHATML)
    for name, source in (
        (str(tmp_path / "mine.jinja"), CHATML),
        ("qwen2_5_training.jinja", trl_templates()["qwen2_5_training.jinja"]),
    ):
        assert ChatFormat.load(tmp_path, tokenizer, template=name).template.source == source
    for name, hint in (("absent.jinja", r"TRL's are: .*qwen3_training"), ("qwen2_5", r"Did you mean 'qwen2_5\.jinja'")):
        with pytest.raises(ConfigurationError, match=rf"'{name}' is not a file, nor one of TRL's\. {hint}"):
            ChatFormat.load(tmp_path, tokenizer, template=name)


def test_an_adapter_without_a_format_has_that_of_its_base_model(tmp_path: Path) -> None:
    base, adapter = tmp_path / "base", tmp_path / "adapter"
    tokenizer = FAMILIES["TRL qwen3.jinja"].tokenizer(base)
    ChatFormat(tokenizer, template_options={"enable_thinking": False}).save(base)
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": str(base)}))
    assert ChatFormat.load(adapter, tokenizer).template.options == {"enable_thinking": False}


@samples(
    ("change", "words"),
    [
        ({"tool_role": "user"}, r"records tool_role='user', but .* give tool_role='tool'"),
        ({"version": 9}, "is of version 9"),
        ({"template_file": "chat_format.jinja"}, "which is missing"),
        (None, "is damaged"),
        ({"template_options": "x"}, "is damaged"),
        ({"date": "soon"}, "is damaged"),
    ],
)
def test_a_format_that_does_not_hold_any_more_is_refused(change: Any, words: str, tmp_path: Path) -> None:
    tokenizer = build_tokenizer()
    ChatFormat(tokenizer).save(tmp_path)
    path = tmp_path / "chat_format.json"
    path.write_text("[" if change is None else json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(ConfigurationError, match=words):
        ChatFormat.load(tmp_path, tokenizer)


@samples("roles", [(), ("user",), ("assistant",), ("user", "assistant", "assistant")])
def test_a_history_without_something_to_learn_is_refused(roles: Any) -> None:
    with pytest.raises(ConfigurationError, match="needs a model turn, each after what it answers"):
        ChatFormat(build_tokenizer()).encode([Message(role, "x") for role in roles])


# --- played ----------------------------------------------------------------------------------------------------------

LONG = TokenLimits(max_prompt_tokens=4096, max_completion_tokens=4096)
TWO = f"{CALL}\n{CALL}"
BROKEN = f"{CALL}\n<tool_call>\n{{\n</tool_call>"


@pytest.mark.parametrize("name", ["TRL gemma3.jinja", "TRL cohere.jinja", "Mistral Nemo, Mistral 7B v0.3"])
@samples("text", [TWO, BROKEN], ids=["two calls", "a call beside an error"])
def test_a_turn_with_two_outcomes_is_played_where_roles_must_alternate(name: str, text: str, tmp_path: Path) -> None:
    chat = ChatFormat(FAMILIES[name].tokenizer(tmp_path))
    found = played(text, "<answer>yes</answer>", chat=chat, limits=LONG)
    tokens = tokens_of(found)
    assert [chat.action(tokens.completion_ids[start:end]) for start, end in tokens.spans] == [
        text,
        "<answer>yes</answer>",
    ]
    assert found.terminated and not tokens.context_starts


def test_a_prompt_shows_the_structured_calls_of_shots(tmp_path: Path) -> None:
    """The parser "openai" keeps calls outside the text, with no tool format of the model: the template writes them."""
    chat = ChatFormat(FAMILIES["TRL qwen3.jinja"].tokenizer(tmp_path))
    call, outcome = ToolCall("look", {"query": "when"}), ToolOutcome("at noon")
    shot = Shot("s", "when", (ShotTurn(call, (outcome,)), ShotTurn("noon")))
    env = partial(lookup_env, parser="openai", shots=[shot])
    tokens = tokens_of(played("<answer>yes</answer>", env=env, chat=chat, limits=LONG))
    prompt = chat.tokenizer.decode(tokens.prompt_ids)
    assert '<tool_call>\n{"name": "look", "arguments": {"query": "when"}}\n</tool_call><|im_end|>' in prompt


@pytest.mark.parametrize("env", [lookup_env, partial(EchoEnv, turns=3, says="go on")], ids=["ToolEnv", "another Env"])
def test_an_episode_begins_a_row_where_the_template_drops_thinking(env: Any, tmp_path: Path) -> None:
    chat = ChatFormat(FAMILIES["TRL lfm2_2_5.jinja"].tokenizer(tmp_path))
    thought = "<think>\nplan\n</think>\n\nhm"
    tokens = tokens_of(played("hm", thought, "<answer>yes</answer>", env=env, chat=chat, limits=LONG))
    assert tokens.context_starts == (tokens.spans[1][1],)
    row = chat.tokenizer.decode(tokens.completion_ids[tokens.context_starts[0] :])
    assert row.count("hm<|im_end|>") == 2 and "plan" not in row
