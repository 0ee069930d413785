"""Episodes whose tokens are known beforehand, so that every system decodes the same ones.

Speed can be compared only if all sides generate the same tokens, turns and tool responses; random weights call no tool.
`force` therefore raises the logit of the script's token at every position, as a forward hook of the model: each token
still costs a whole forward pass and is still sampled, in every engine alike, and none of them knows of the script.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import gymnasium
import torch
from tokenizers import AddedToken
from transformers import PreTrainedModel, PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM
from trl.chat_template_utils import add_response_schema, get_training_chat_template, qwen3_chat_template

import agent_r1_gym.envs  # noqa: F401  # registers the environments
from agent_r1_gym.datasets.base import QADataset, Question
from agent_r1_gym.datasets.fiction_compact import compact_vocabulary
from agent_r1_gym.tools.search import SearchTool
from agent_r1_gym.types import Message, Passage
from benchmarks.systems import StubRetriever
from benchmarks.trainer_settings import Lengths, Settings
from trainers.rollout import TextEnv
from trainers.templates import ChatTokens
from trainers.tiny import (
    ANSWER_CLOSE,
    ANSWER_OPEN,
    CALL_CLOSE,
    CALL_OPEN,
    SIZES,
    THINK_CLOSE,
    THINK_OPEN,
    build_model,
    build_tokenizer,
)

_WORDS = tuple(word for word in compact_vocabulary() if word.islower() and word.isalpha())
GOLD = _WORDS[-1]
FORCE = 1e4
"""Logit of the script's token; far above what random weights give, within bfloat16."""


class SearchEnvironment:
    """The tool as TRL's `environment_factory` wants it: each public method is one.

    Args:
        tool: what searches.
    """

    def __init__(self, tool: SearchTool) -> None:
        self._tool = tool

    def reset(self, **_row: Any) -> None:
        """Starts an episode; the question already stands in the prompt."""

    def search(self, query: str) -> str:
        """Search an encyclopedia; returns the best passages.

        Args:
            query: what to look for
        """
        return self._tool.execute({"query": query}).content


@dataclass(frozen=True)
class Script:
    """An episode, token by token.

    Attributes:
        settings: model, number of questions and copies.
        turns: model turns.
        tokenizer: with TRL's Qwen3 template, which renders calls and tool responses.
        system_prompt: what TRL puts before the question to declare the tool.
        passage: what every search finds.
        question: words of every question, in another order in each.
        prompt_ids: prompt of the first question.
        completion_ids: all turns and tool responses.
        loss_mask: 1 for what the model generates.
    """

    settings: Settings
    turns: int
    tokenizer: PreTrainedTokenizerFast
    system_prompt: str
    passage: Passage
    question: tuple[str, ...]
    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]
    loss_mask: tuple[int, ...]

    @property
    def generated(self) -> int:
        """Tokens of an episode that the model generates."""
        return sum(self.loss_mask)

    @property
    def responses(self) -> int:
        """Tokens of an episode that come from tool and template."""
        return len(self.loss_mask) - self.generated

    def questions(self) -> list[str]:
        """Returns as many different questions as the settings ask for, all of one length."""
        words, others = self.question, range(1, self.settings.prompts)
        orders = [words, *(random.Random(number).sample(words, len(words)) for number in others)]
        return [" ".join(order) for order in orders]

    def search_tool(self) -> SearchTool:
        """Returns the tool that every side searches with."""
        return SearchTool(StubRetriever([self.passage]), top_k=1, style="plain")

    def make_env(self) -> TextEnv:
        """Returns this suite's environment for the script."""
        rows = [Question(str(number), text, (GOLD,)) for number, text in enumerate(self.questions())]
        dataset = QADataset(
            rows, name="scripted", split="train", source="benchmarks", fingerprint="scripted", corpus=(self.passage,)
        )
        env = gymnasium.make(
            "AgentR1/HotpotQA-v0",
            dataset=dataset,
            retriever=StubRetriever([self.passage]),
            top_k=1,
            search_style="plain",
            system_prompt=self.system_prompt,
        )
        return env.unwrapped  # type: ignore[return-value]


def write_script(settings: Settings, lengths: Lengths, *, turns: int) -> Script:
    """Returns the episode of `turns` turns: searches, then the right answer."""
    question = _words(lengths.question)
    passage = Passage("0", _WORDS[0], " ".join(_words(lengths.passage - 2)))  # the title and a colon come to it
    thinking = THINK_OPEN + " ".join(_words(lengths.thought)) + THINK_CLOSE
    query = " ".join(_words(lengths.query))
    tokenizer, system_prompt = _tokenizer(SearchEnvironment(SearchTool(StubRetriever([passage]))))
    chat = ChatTokens(tokenizer)
    gap = chat.gap_ids([Message("tool", f"{passage.title} : {passage.text}")], stopped=True)
    search = _turn(chat, tokenizer, thinking + CALL_OPEN + query + CALL_CLOSE)
    answer = _turn(chat, tokenizer, thinking + ANSWER_OPEN + GOLD + ANSWER_CLOSE)
    messages = [Message("system", system_prompt), Message("user", " ".join(question))]
    return Script(
        settings=settings,
        turns=turns,
        tokenizer=tokenizer,
        system_prompt=system_prompt,
        passage=passage,
        question=question,
        prompt_ids=tuple(chat.prompt_ids(messages)),
        completion_ids=tuple((search + gap) * (turns - 1) + answer),
        loss_mask=tuple(([1] * len(search) + [0] * len(gap)) * (turns - 1) + [1] * len(answer)),
    )


def force(model: PreTrainedModel, script: Script) -> Any:
    """Makes the model generate the script, whoever decodes; returns the hook's handle (`remove` ends it).

    The token is looked up by its position, which every engine has to tell the model anyway.
    """
    ids = [*script.prompt_ids, *script.completion_ids]
    following = torch.tensor([*ids[1:], ids[-1]], device=model.device)

    def hook(_module: Any, _args: Any, inputs: dict[str, Any], output: Any) -> None:
        logits, positions = getattr(output, "logits", None), inputs.get("position_ids")
        if logits is not None and positions is not None and not torch.is_grad_enabled():
            tokens = following[positions[:, -1].clamp(max=len(following) - 1)]
            logits[:, -1].scatter_(1, tokens.expand(len(logits))[:, None], FORCE)

    return model.register_forward_hook(hook, with_kwargs=True)


def _words(count: int) -> tuple[str, ...]:
    return (_WORDS * (1 + count // len(_WORDS)))[:count]


def _turn(chat: ChatTokens, tokenizer: Any, text: str) -> list[int]:
    return [*tokenizer(text, add_special_tokens=False)["input_ids"], chat.stop_id]


def _tokenizer(environment: SearchEnvironment) -> tuple[PreTrainedTokenizerFast, str]:
    """Returns the tiny policy's tokenizer with TRL's Qwen3 template, and the system prompt that declares the tool.

    TRL knows how to parse calls of the template that Qwen3 ships, and which template keeps earlier turns. The tool's
    declaration is one token, so that the settings alone say how long the prompt is.
    """
    tokenizer = build_tokenizer()
    tokenizer.chat_template = qwen3_chat_template
    add_response_schema(tokenizer)
    tokenizer.chat_template = get_training_chat_template(tokenizer)
    rendered = str(
        tokenizer.apply_chat_template([{"role": "user", "content": "?"}], tools=[environment.search], tokenize=False)
    )
    system_prompt = rendered.split("<|im_start|>system\n", 1)[1].split("<|im_end|>", 1)[0]
    literals = (system_prompt, "<tool_response>\n", "\n</tool_response>")
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in literals])
    return tokenizer, system_prompt


_QWEN2_5: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "qwen2.5-0.5b": MappingProxyType(
            {
                "vocab_size": 151_936,
                "hidden_size": 896,
                "num_hidden_layers": 24,
                "num_attention_heads": 14,
                "num_key_value_heads": 2,
                "intermediate_size": 4864,
                "max_position_embeddings": 32_768,
                "rope_theta": 1e6,
            }
        ),
        "qwen2.5-minuscule": MappingProxyType(
            {
                "vocab_size": 1024,
                "hidden_size": 32,
                "num_hidden_layers": 2,
                "num_attention_heads": 4,
                "num_key_value_heads": 2,
                "intermediate_size": 64,
                "max_position_embeddings": 1024,
            }
        ),
    }
)
MODELS = ("tiny", *_QWEN2_5)
"""What `make_model` can make: the tiny policy (0.4M parameters, float32) and shapes of Qwen2.5 (bfloat16)."""


def make_model(name: str, tokenizer: PreTrainedTokenizerFast, *, device: str) -> PreTrainedModel:
    """Returns a randomly initialised model, the same on every call.

    Args:
        name: one of `MODELS`, or a size of the tiny policy (`trainers.tiny.SIZES`).
        tokenizer: the model's.
        device: where it lives.

    Raises:
        ValueError: its vocabulary is smaller than the tokenizer's.
    """
    if name == "tiny" or name in SIZES:
        return build_model(tokenizer, size="0.4M" if name == "tiny" else name).to(device)  # type: ignore[arg-type]
    config = Qwen2Config(
        **_QWEN2_5[name],
        tie_word_embeddings=True,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
        dtype="bfloat16",
    )
    if config.vocab_size < len(tokenizer):
        raise ValueError(f"{name} has {config.vocab_size} words, the tokenizer {len(tokenizer)}.")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Qwen2ForCausalLM(config).to(device=device, dtype=torch.bfloat16)  # type: ignore[arg-type]
