"""Episodes whose tokens are known beforehand, so that every system decodes the same ones.

Speed can be compared only if all sides generate the same tokens, turns and tool responses; random weights call no tool.
`force` therefore raises the logit of the script's token after every token, as a forward hook of the model: each token
still costs a whole forward pass and is still sampled, in every engine alike, and none of them knows of the script.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from types import MappingProxyType
from typing import Any, NamedTuple

import gymnasium
import torch
from tokenizers import AddedToken
from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerFast
from trl.chat_template_utils import add_response_schema, get_training_chat_template, qwen3_chat_template

import agent_r1_gym.envs  # noqa: F401  # registers the environments
from agent_r1_gym.core.types import Message, Passage
from agent_r1_gym.data.base import QADataset, Question
from agent_r1_gym.envs.fiction_qa.compact_style import compact_vocabulary
from agent_r1_gym.registry import TextEnv
from agent_r1_gym.retrieval.base import Hit
from agent_r1_gym.tools.search import SearchTool
from benchmarks.common.models import MINUSCULE, random_qwen2
from benchmarks.speed.env_systems import StubRetriever
from trainers.monitoring.memory import QWEN25, ModelShape
from trainers.rollouts.chat_format import ChatFormat
from trainers.toy import model as toy


@dataclass(frozen=True, slots=True)
class Lengths:
    """Lengths of an episode, in words of one token each; the format's own tokens come to them.

    Attributes:
        name: what the lengths are like.
        question: words of the question, before the first turn; plus about ten tokens. A pair: between so and so many,
            evenly spread over the questions.
        thought: words of thinking in each turn; plus about six tokens.
        query: words of a search.
        passage: words that a search finds; plus about nine tokens.
        spread: how much thoughts differ: each has between `1 - spread` and `1 + spread` times `thought` words, drawn
            for every turn of every question.
        turns: model turns of the questions, between so and so many; None: as many as the claim is about.
        pass_size: rollouts in a pass of the update; 0: all.
        search_seconds: what a search takes.
    """

    name: str
    question: int | tuple[int, int]
    thought: int
    query: int
    passage: int
    spread: float = 0.0
    turns: tuple[int, int] | None = None
    pass_size: int = 0
    search_seconds: float = 0.0


COMPACT = Lengths("compact", question=12, thought=8, query=3, passage=8)
"""As in FictionQA's compact style: little is prefilled, so that a kept cache saves little."""
USUAL = Lengths("usual", question=96, thought=24, query=6, passage=64)
"""Nearer to what an instruct model plays: declared tools and a question, some sentences, a short passage."""
MIXED = replace(USUAL, name="mixed", spread=0.75)
"""The same in the mean, but no two thoughts are of one length, as in all real batches: a barrier costs something."""
REALISTIC = Lengths(
    "realistic", question=(300, 500), thought=40, query=6, passage=150, spread=0.75, turns=(1, 5), pass_size=8
)
"""As agents' rollouts are: prompts of 300 to 500 tokens, 1 to 5 turns; half of a padded batch is padding."""

SLOW = replace(MIXED, name="mixed, slow tool", search_seconds=0.05)
"""With a search of 50 ms, as over a network."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Sizes of one run.

    Attributes:
        rounds: values per figure; the systems take turns in each.
        model: one of `MODELS`.
        lengths: episodes to measure with.
        turns: model turns of the multi-turn episode; all but the last search.
        prompts: different questions of a batch.
        num_generations: episodes of each question.
        steps: optimiser steps per value; one more before them warms up.
        slow: episodes whose tool takes its time.
        precision: "bfloat16", "float32", or "": that of the device.
    """

    rounds: int = 5
    model: str = "tiny"
    lengths: tuple[Lengths, ...] = (COMPACT, USUAL, MIXED, REALISTIC)
    turns: int = 4
    prompts: int = 8
    num_generations: int = 8
    steps: int = 1
    slow: Lengths = SLOW
    precision: str = ""

    @property
    def batch(self) -> int:
        """Episodes of a batch."""
        return self.prompts * self.num_generations


FULL = Settings()
QUICK = Settings(
    rounds=2, lengths=(COMPACT,), prompts=2, num_generations=2, steps=1, slow=replace(COMPACT, search_seconds=0.01)
)
CUDA = Settings(model="qwen2.5-0.5b", lengths=(USUAL, Lengths("long", question=256, thought=64, query=8, passage=256)))
"""For a GPU: a model of half a billion parameters."""

PRETRAINED = Settings(
    lengths=(Lengths("small", question=(100, 160), thought=16, query=6, passage=48, spread=0.5, pass_size=8),),
    turns=3,
    prompts=2,
    num_generations=8,
    precision="bfloat16",
)
"""For a pretrained model: up to 20 minutes a claim on two cores with 135M parameters."""

TARGETS = MappingProxyType(
    {
        "rollouts_several_turns": 2.0,
        "rollouts_one_turn": 1.0,
        "rollouts_slow_tool": 3.0,
        "token_several_turns": 1.15,
        "step_several_turns": 1.5,
        "step_realistic": 2.5,
        "update_realistic": 3.0,
    }
)
"""What has to be shown, all of them ratios of wall time."""


_WORDS = tuple(word for word in compact_vocabulary() if word.islower() and word.isalpha())
GOLD = _WORDS[-1]
_ATTEMPTS = 100
FORCE = 1e4
"""Logit of the script's token; far above what random weights give, within bfloat16."""


class SlowRetriever(StubRetriever):
    """Takes its time for each call, as a server would; many calls wait side by side."""

    call_timeout = 60.0
    in_process = False

    def __init__(self, passages: Sequence[Passage], seconds: float) -> None:
        super().__init__(passages)
        self._seconds = seconds

    def search_batch(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """Returns the stubbed hits after a while."""
        time.sleep(self._seconds)
        return super().search_batch(queries, k)


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


class Episode(NamedTuple):
    """What is played for one question.

    Attributes:
        prompt_ids: tokens of its prompt.
        completion_ids: all turns and tool responses.
        loss_mask: 1 for what the model generates.
    """

    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]
    loss_mask: tuple[int, ...]


@dataclass(frozen=True)
class Script:
    """Episodes, token by token.

    Attributes:
        settings: model, number of questions and copies.
        turns: model turns.
        tokenizer: with TRL's Qwen3 template, which renders calls and tool responses.
        system_prompt: what TRL puts before the question to declare the tool.
        passage: what every search finds.
        questions: one for each episode.
        episodes: what is played.
        pass_size: see `Lengths`.
        search_seconds: see `Lengths`.
    """

    settings: Settings
    turns: int
    tokenizer: PreTrainedTokenizerFast
    system_prompt: str
    passage: Passage
    questions: tuple[str, ...]
    episodes: tuple[Episode, ...]
    pass_size: int = 0
    search_seconds: float = 0.0

    @property
    def retriever(self) -> StubRetriever:
        """What every side searches with."""
        passages, seconds = [self.passage], self.search_seconds
        return SlowRetriever(passages, seconds) if seconds else StubRetriever(passages)

    @property
    def generated(self) -> float:
        """Tokens that the model generates, in the mean over the episodes."""
        return fmean(sum(episode.loss_mask) for episode in self.episodes)

    @property
    def responses(self) -> float:
        """Tokens that come from tool and template, in the mean over the episodes."""
        return fmean(len(episode.loss_mask) for episode in self.episodes) - self.generated

    @property
    def longest_prompt(self) -> int:
        """Number of tokens of the longest prompt."""
        return max(len(episode.prompt_ids) for episode in self.episodes)

    @property
    def longest_completion(self) -> int:
        """Number of tokens of the longest episode, without its prompt."""
        return max(len(episode.completion_ids) for episode in self.episodes)

    def search_tool(self) -> SearchTool:
        """Returns the tool that every side searches with."""
        return SearchTool(self.retriever, top_k=1, style="plain")

    def make_env(self) -> TextEnv:
        """Returns this suite's environment for the script."""
        rows = [Question(str(number), text, (GOLD,)) for number, text in enumerate(self.questions)]
        dataset = QADataset(
            rows, name="scripted", split="train", source="benchmarks", fingerprint="scripted", corpus=(self.passage,)
        )
        env = gymnasium.make(
            "AgentR1/HotpotQA-v0",
            dataset=dataset,
            retriever=self.retriever,
            top_k=1,
            search_style="plain",
            raw_system_prompt=self.system_prompt,
        )
        return env.unwrapped


def write_script(settings: Settings, lengths: Lengths, *, turns: int) -> Script:
    """Returns episodes of `turns` turns (or those of `lengths`), one for each question: searches, then the answer."""
    passage = Passage("0", _WORDS[0], " ".join(_words(lengths.passage - 2)))  # the title and a colon come to it
    tokenizer, system_prompt = _tokenizer(SearchEnvironment(SearchTool(StubRetriever([passage]))))
    chat = ChatFormat(tokenizer)
    gap = chat.between_turns_ids([Message("tool", f"{passage.title} : {passage.text}")], stopped=True)
    query = " ".join(_words(lengths.query))
    call, answer = toy.CALL_OPEN + query + toy.CALL_CLOSE, toy.ANSWER_OPEN + GOLD + toy.ANSWER_CLOSE
    questions = _questions(settings.prompts, lengths)

    def episode(number: int, rng: random.Random) -> Episode:
        messages = [Message("system", system_prompt), Message("user", questions[number])]
        completion: list[int] = []
        mask: list[int] = []
        own = (
            turns if lengths.turns is None else _spread(lengths.turns, number * 5 % settings.prompts, settings.prompts)
        )
        for turn, end in enumerate([call] * (own - 1) + [answer]):
            before = gap if turn else []
            thought = _thought(lengths, number, settings.prompts, rng)
            text = toy.THINK_OPEN + thought + toy.THINK_CLOSE + end
            spoken = [*tokenizer(text, add_special_tokens=False)["input_ids"], chat.stop_id]
            completion += before + spoken
            mask += [0] * len(before) + [1] * len(spoken)
        return Episode(tuple(chat.prompt_ids(messages)), tuple(completion), tuple(mask))

    for attempt in range(_ATTEMPTS):
        rng = random.Random(attempt)
        episodes = tuple(episode(number, rng) for number in range(settings.prompts))
        if _following(episodes) is not None:
            own = lengths.pass_size, lengths.search_seconds
            return Script(settings, turns, tokenizer, system_prompt, passage, questions, episodes, *own)
    raise ValueError(
        f"No episodes of {lengths} can be distinguished by a token and its position; lower prompts or spread."
    )


def force(model: PreTrainedModel, script: Script) -> Any:
    """Makes the model generate the script, in any engine; returns the hook's handle (`remove` ends it).

    The token is looked up by the last one and its position, which every engine passes to the model anyway.
    """
    following = _following(script.episodes)
    assert following is not None
    places = 1 + max(position for position, _ in following)
    most = max(Counter(position for position, _ in following).values())
    table = torch.full((2, places, most), -1, device=model.device)  # by position: tokens, and what follows each
    used: Counter[int] = Counter()
    for (position, token), then in following.items():
        table[:, position, used[position]] = torch.tensor([token, then])
        used[position] += 1

    def hook(_module: Any, _args: Any, inputs: dict[str, Any], output: Any) -> None:
        logits, positions = getattr(output, "logits", None), inputs.get("position_ids")
        if logits is not None and positions is not None and not torch.is_grad_enabled():
            tokens, then = table[:, positions[:, -1].clamp(max=places - 1)]
            known = tokens == inputs["input_ids"][:, -1:]
            chosen = then.gather(1, known.int().argmax(dim=1, keepdim=True)).clamp(min=0)
            logits[:, -1].scatter_(1, chosen.expand(len(logits), 1), FORCE)

    return model.register_forward_hook(hook, with_kwargs=True)


def _following(episodes: Iterable[Episode]) -> dict[tuple[int, int], int] | None:
    """Returns the token after each that the model is fed last, by position and token; None if two differ in it."""
    found: dict[tuple[int, int], int] = {}
    for episode in episodes:
        start = len(episode.prompt_ids) - 1
        fed = pairwise((episode.prompt_ids[-1], *episode.completion_ids))
        for position, (generated, (token, then)) in enumerate(zip(episode.loss_mask, fed, strict=True), start):
            if generated and found.setdefault((position, token), then) != then:
                return None
    return found


def _questions(count: int, lengths: Lengths) -> tuple[str, ...]:
    """Returns different questions: of one length, or each a word longer than the one before if episodes differ."""
    sizes = [
        lengths.question if isinstance(lengths.question, int) else _spread(lengths.question, number * 3 % count, count)
        for number in range(count)
    ]
    orders = [random.Random(number).sample(_words(size), size) for number, size in enumerate(sizes)]
    return tuple(" ".join([*order, *_words(number if lengths.spread else 0)]) for number, order in enumerate(orders))


def _spread(ends: tuple[int, int], place: int, count: int) -> int:
    """Returns the value at one of `count` places, evenly spread between two ends."""
    low, high = ends
    return round(low + (high - low) * place / max(count - 1, 1))


def _thought(lengths: Lengths, episode: int, prompts: int, rng: random.Random) -> str:
    """Returns the words of a thought; where episodes differ, each has words of its own."""
    if not lengths.spread:
        return " ".join(_words(lengths.thought))
    low, high = (round(lengths.thought * (1 + sign * lengths.spread)) for sign in (-1, 1))
    own = _WORDS[lengths.query + episode :: prompts] or _WORDS
    return " ".join(rng.choices(own, k=rng.randint(max(1, low), high)))


def _words(count: int) -> tuple[str, ...]:
    return (_WORDS * (1 + count // len(_WORDS)))[:count]


def _tokenizer(environment: SearchEnvironment) -> tuple[PreTrainedTokenizerFast, str]:
    """Returns the tiny policy's tokenizer with TRL's Qwen3 template, and the system prompt that declares the tool.

    TRL knows how to parse calls of the template that Qwen3 ships, and which template keeps earlier turns. The tool's
    declaration is one token, so that the settings alone determine the length of the prompt.
    """
    tokenizer = toy.build_tokenizer()
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


_QWEN2_5: Mapping[str, tuple[ModelShape, Mapping[str, Any]]] = {
    "qwen2.5-0.5b": (QWEN25["0.5B"], {"max_position_embeddings": 32_768, "rope_theta": 1e6}),
    "qwen2.5-minuscule": (MINUSCULE, {"max_position_embeddings": 1024}),
}
MODELS = ("tiny", *_QWEN2_5)
"""What `make_model` can make: the tiny policy (0.4M parameters, float32) and shapes of Qwen2.5 (bfloat16)."""


def make_model(name: str, tokenizer: PreTrainedTokenizerFast, *, device: str) -> PreTrainedModel:
    """Returns a randomly initialised model, the same on every call.

    Args:
        name: one of `MODELS`, a size of the tiny policy (`trainers.toy.model.SIZES`), or a folder with a model.
        tokenizer: the model's.
        device: where it lives.

    Raises:
        ValueError: its vocabulary is smaller than the tokenizer's.
    """
    if name == "tiny" or name in toy.SIZES:
        return toy.build_model(tokenizer, size="0.4M" if name == "tiny" else name).to(device)  # type: ignore[arg-type, no-any-return]
    if Path(name).is_dir():
        pretrained: PreTrainedModel = AutoModelForCausalLM.from_pretrained(name, dtype=torch.float32)
        if pretrained.config.get_text_config().vocab_size < len(tokenizer):
            raise ValueError(f"{name}: its vocabulary is smaller than the script's {len(tokenizer)} tokens.")
        return pretrained.to(device)  # type: ignore[arg-type, no-any-return]
    shape, options = _QWEN2_5[name]
    model: PreTrainedModel = random_qwen2(shape, tokenizer, dtype="bfloat16", **options)
    model.to(device=device, dtype=torch.bfloat16)  # type: ignore[call-arg]
    return model
