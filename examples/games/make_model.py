"""Makes a small Qwen3-shaped model with random weights, and a tokenizer of the words in its environments.

    python make_model.py model "FrozenLakeText random_maps=true" BlackjackText

On a GPU take a real one instead, such as Qwen/Qwen2.5-1.5B-Instruct; everything else stays as it is.
"""

from __future__ import annotations

import argparse
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from agent_r1_gym.registry import make_text_env
from agent_r1_gym.run.mixture import EnvConfig
from agent_r1_gym.run.policies import RandomPolicy, make_policy
from agent_r1_gym.run.session import ANY_TASK, Job, Session, step_sessions

EPISODES = 100
VALUE = re.compile(r'(?<=": ")(?!\w+", "arguments")[^"]*(?=")|(?<=": )\d+|(?<=<think>)[^<]*|(?<=<summary>)[^<]*')
"""Of a call, what its arguments are, and what was thought before it; what stands between does not vary."""
ROLES = ("system", "user", "assistant", "tool")
END = "<|end|>"
TEMPLATE = (
    "{% for message in messages %}{{ '<|' + message.role + '|>' + message.content + '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def messages(words: str, actions: set[str], player: str) -> Iterator[str]:
    """Yields the texts of episodes of an environment; where it names actions, every other one is played at random.

    Args:
        words: the environment, as `--env` takes it.
        actions: gets the actions that it names.
        player: who plays the others, as in `--policy`.
    """
    env_config = EnvConfig.parse(words)
    env = make_text_env(env_config.env_id, env_config.options)
    for seed in range(EPISODES):
        session = Session(env, Job(ANY_TASK, seed=seed))
        while not session.ended:
            state = session.state()
            actions.update(state.actions)
            at_random = state.actions and (seed % 2 or "oracle" not in state.scripts)
            policy = RandomPolicy() if at_random else make_policy(player)
            step_sessions([session], policy.act([state]))
        yield from (message.content for message in session.messages)


def frames(texts: Sequence[str]) -> Iterator[str]:
    """Yields what stands around the values of calls."""
    for text in texts:
        if text.startswith(("<tool_call>", "<think>")):
            yield from VALUE.split(text)


def make_tokenizer(envs: Sequence[str], *, player: str, copying: bool) -> PreTrainedTokenizerFast:
    """Returns a byte-level BPE tokenizer to which frequent words are one token, and so is what comes often.

    Args:
        envs: whose words.
        player: who plays (see `messages`).
        copying: what comes often are frames of calls, so that values are the same tokens wherever they stand. Else
            whole lines; actions that an environment names stay in words: these can be copied out of a list of what is
            possible.
    """
    actions: set[str] = set()
    texts = [text for words in envs for text in messages(words, actions, player)]
    often = frames(texts) if copying else (line for text in texts for line in text.splitlines() if line not in actions)
    lines = Counter(text for text in often if len(text) > (2 if copying else 8))
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    core.train_from_iterator(
        texts, trainers.BpeTrainer(vocab_size=1500, min_frequency=2, initial_alphabet=alphabet, show_progress=False)
    )
    core.add_tokens([AddedToken(line, normalized=False) for line, times in lines.most_common(300) if times >= 5])
    special = ("<|pad|>", END, *(f"<|{role}|>" for role in ROLES))
    core.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in special])
    return PreTrainedTokenizerFast(
        tokenizer_object=core, pad_token="<|pad|>", eos_token=END, chat_template=TEMPLATE, padding_side="left"
    )


def make_model(tokenizer: PreTrainedTokenizerFast, *, layers: int, width: int, seed: int) -> Qwen3ForCausalLM:
    """Returns a random model of some 0.3M parameters."""
    config = Qwen3Config(
        vocab_size=len(tokenizer), hidden_size=width, intermediate_size=3 * width, num_hidden_layers=layers,
        num_attention_heads=4, num_key_value_heads=4, head_dim=width // 4, max_position_embeddings=2048,
        tie_word_embeddings=True, initializer_range=0.06,
        bos_token_id=None, eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    torch.manual_seed(seed)
    return Qwen3ForCausalLM(config)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="folder of the model")
    parser.add_argument("envs", nargs="+", help="environments, each as --env of agent-r1 takes it")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0, help="seed of the weights")
    parser.add_argument("--player", default="oracle", help="who is listened to, such as script:beginner (oracle)")
    parser.add_argument("--copying", action="store_true", help="tokens for frames of calls, not for whole lines")
    options = parser.parse_args()
    own = make_tokenizer(options.envs, player=options.player, copying=options.copying)
    own.save_pretrained(options.out)
    make_model(own, layers=options.layers, width=options.width, seed=options.seed).save_pretrained(options.out)
