"""REINFORCE with a group baseline, in a loop of one's own: transformers samples, `make_vec` steps; no trainer of ours.

    python own_loop.py --steps 20     # the mean reward rises within minutes on a CPU

A turn is trained as the model saw it and sampled it: (prompt ids, sampled ids). The history in the next prompt is
tokenised again. Any model with a chat template does; the default is the tiny policy that comes with the project.
"""

import argparse
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import trainers.toy
from agent_r1_gym import to_chat

TINY = Path(trainers.toy.__file__).parent / "weights"
PROMPTS, GROUP, TURN_TOKENS = 8, 8, 40
Turn = tuple[int, torch.Tensor, torch.Tensor]
"""Episode, prompt ids, sampled ids."""


def rollouts(envs: Any, model: Any, tokenizer: Any, seeds: Any) -> tuple[list[Turn], Any]:
    """Plays one episode per seed; returns all turns, and the return per episode."""
    _, infos = envs.reset(seed=[int(seed) for seed in seeds])
    returns, running, turns = np.zeros(len(seeds)), np.ones(len(seeds), bool), []
    while running.any():
        live = np.flatnonzero(running)
        chats = [to_chat(infos["messages"][i]) for i in live]
        batch = tokenizer.apply_chat_template(
            chats, add_generation_prompt=True, padding=True, return_tensors="pt", return_dict=True
        )
        width = batch["input_ids"].shape[1]
        with torch.no_grad():
            ids = model.generate(**batch, do_sample=True, top_k=0, max_new_tokens=TURN_TOKENS)[:, width:]
        actions = [""] * len(seeds)  # episodes that are over get an empty turn, which are ignored
        for row, i in enumerate(live):
            end = (ids[row] == tokenizer.eos_token_id).nonzero()
            length = int(end[0]) + 1 if len(end) else ids.shape[1]
            context = batch["input_ids"][row][batch["attention_mask"][row].bool()]
            turns.append((i, context, ids[row, :length]))
            actions[i] = tokenizer.decode(ids[row, :length], skip_special_tokens=True)
        _, rewards, terminations, truncations, infos = envs.step(actions)
        returns += np.where(running, rewards, 0.0)
        running &= ~(terminations | truncations)
    return turns, returns


def loss_of(model: Any, turns: list[Turn], advantages: Any) -> torch.Tensor:
    """Returns the mean over sampled tokens of -advantage * log-probability."""
    longest = max(len(context) + len(sampled) for _, context, sampled in turns)
    ids, mask = (torch.zeros(len(turns), longest, dtype=torch.long) for _ in range(2))
    weight = torch.zeros(len(turns), longest)
    for row, (episode, context, sampled) in enumerate(turns):
        ids[row, : len(context) + len(sampled)] = torch.cat([context, sampled])
        mask[row, : len(context) + len(sampled)] = 1
        weight[row, len(context) : len(context) + len(sampled)] = advantages[episode]
    logits = model(input_ids=ids, attention_mask=mask).logits[:, :-1]
    log_probs = -torch.nn.functional.cross_entropy(logits.transpose(1, 2), ids[:, 1:], reduction="none")
    return -(weight[:, 1:] * log_probs).sum() / sum(len(sampled) for _, _, sampled in turns)


def main() -> None:
    """Trains, and prints the mean reward of each step."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=str(TINY))
    parser.add_argument("--steps", type=int, default=20)
    options = parser.parse_args()
    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(options.model, padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    envs = gym.make_vec(
        "AgentR1/FictionQA-v0", num_envs=PROMPTS * GROUP, autoreset_mode="SameStep", style="compact", entities=800
    )
    for step in range(options.steps):
        seeds = np.repeat(np.arange(PROMPTS) + step * PROMPTS, GROUP)  # a seed names a question
        turns, returns = rollouts(envs, model, tokenizer, seeds)
        groups = returns.reshape(PROMPTS, GROUP)
        advantages = (groups - groups.mean(1, keepdims=True)).reshape(-1)
        loss = loss_of(model, turns, advantages)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step + 1}: mean reward {returns.mean():.3f}")


if __name__ == "__main__":
    main()
