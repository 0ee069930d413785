"""REINFORCE in CleanRL's manner: one file, Gymnasium's vector, a network that embeds bytes. Needs torch alone.

python examples/libraries/cleanrl_reinforce.py
"""

import gymnasium as gym
import torch
from arms import make_env

UPDATES, ENVS = 200, 32


def main() -> tuple[float, float]:
    """Trains; returns the mean reward of the first and of the last twenty updates."""
    torch.manual_seed(0)
    envs = gym.vector.SyncVectorEnv([make_env] * ENVS, autoreset_mode=gym.vector.AutoresetMode.SAME_STEP)
    observations, _ = envs.reset(seed=0)
    network = torch.nn.Sequential(
        torch.nn.Embedding(257, 16),  # bytes are names, not quantities
        torch.nn.Flatten(),
        torch.nn.Linear(12 * 16, 64),
        torch.nn.Tanh(),
        torch.nn.Linear(64, 3),
    )
    optimizer = torch.optim.Adam(network.parameters(), lr=3e-3)
    means: list[float] = []
    for _ in range(UPDATES):
        policy = torch.distributions.Categorical(logits=network(torch.as_tensor(observations)))
        actions = policy.sample()
        observations, rewards, *_ = envs.step(actions.numpy())
        means.append(float(rewards.mean()))
        recent = means[-10:]
        advantages = torch.as_tensor(rewards, dtype=torch.float32) - sum(recent) / len(recent)
        loss = -(policy.log_prob(actions) * advantages).mean() - 0.01 * policy.entropy().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    envs.close()
    return sum(means[:20]) / 20, sum(means[-20:]) / 20


if __name__ == "__main__":
    print("reward: {:.2f} -> {:.2f}".format(*main()))
