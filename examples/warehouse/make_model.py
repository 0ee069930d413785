"""Makes a small Qwen2-shaped model with random weights and a tokenizer of its own: here it stands in for a real one.

    python make_model.py model --template qwen2_5

On a GPU take a real one instead, such as Qwen/Qwen2.5-1.5B-Instruct; everything else stays as it is.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import gymnasium
import torch
import warehouse  # noqa: F401 - registers the environment
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from agent_r1_gym import ToolCall, ToolEnv
from trainers.rollouts.chat_template import read_template

SPECIAL = {
    "qwen2_5": ("<|im_start|>", "<|im_end|>", "<|endoftext|>"),
    "llama3": ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
    "gemma3": ("<bos>", "<start_of_turn>", "<end_of_turn>"),
}
END = {"qwen2_5": "<|im_end|>", "llama3": "<|eot_id|>", "gemma3": "<end_of_turn>"}


def texts() -> Iterator[str]:
    """Yields the texts of the environment: prompts, calls, answers, tool output."""
    env = gymnasium.make("Example/Warehouse-v0", split="all", system_prompt="").unwrapped  # as docs play it
    assert isinstance(env, ToolEnv)
    for index in range(len(env.tasks)):
        env.reset(options={"task_index": index})
        ended = False
        while not ended:
            turn = env.oracle(env.task, env.transitions)
            written = (
                env.parser.format_call(turn) if isinstance(turn, ToolCall) else env.parser.format_answer(str(turn))
            )
            text, _, terminated, truncated, _ = env.step(written)
            ended = terminated or truncated
        yield text


def make_tokenizer(template: str) -> PreTrainedTokenizerFast:
    """Returns a byte-level BPE tokenizer that splits numbers into digits, with a family's special tokens."""
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    core.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    core.train_from_iterator(
        texts(), trainers.BpeTrainer(vocab_size=600, initial_alphabet=alphabet, show_progress=False)
    )
    names = ("<pad>", *SPECIAL[template])
    core.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in names])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, pad_token="<pad>", eos_token=END[template])
    tokenizer.chat_template = read_template(f"{template}.jinja")
    return tokenizer


def make_model(tokenizer: PreTrainedTokenizerFast, *, seed: int) -> Qwen2ForCausalLM:
    """Returns a random model of 0.6M parameters."""
    rows = 64 * (len(tokenizer) // 64 + 1)  # room: loading adds <|endoftext|> to a Qwen2 model's tokenizer
    config = Qwen2Config(
        vocab_size=rows, hidden_size=96, intermediate_size=256, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=2048, tie_word_embeddings=True, initializer_range=0.05,
        bos_token_id=None, eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    torch.manual_seed(seed)
    return Qwen2ForCausalLM(config)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path, help="folder of the model")
    parser.add_argument("--template", choices=list(SPECIAL), default="qwen2_5", help="family of the chat template")
    parser.add_argument("--seed", type=int, default=0, help="seed of the weights")
    options = parser.parse_args()
    own = make_tokenizer(options.template)
    own.save_pretrained(options.out)
    make_model(own, seed=options.seed).save_pretrained(options.out)
