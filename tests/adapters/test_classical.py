"""Classical RL on text: Stable-Baselines3, RLlib, tianshou and torchrl, and REINFORCE in CleanRL's manner."""

from __future__ import annotations

import pickle
from pathlib import Path

import gymnasium
import numpy as np
import pytest

from agent_r1_gym import ChooseAction
from tests.kit.arms import chosen

pytestmark = pytest.mark.adapters


@pytest.fixture
def sb3():
    return pytest.importorskip("stable_baselines3", reason="stable-baselines3 is not installed")


def test_its_checker_finds_nothing(sb3):
    from stable_baselines3.common.env_checker import check_env

    check_env(chosen())
    check_env(ChooseAction(gymnasium.make("AgentR1/FrozenLakeText-v0"), most=4, observations="tokens"))


@pytest.mark.slow
def test_ppo_learns_a_bandit(sb3, tmp_path: Path):
    from stable_baselines3.common.evaluation import evaluate_policy

    from agent_r1_gym.adapters.sb3 import TokenExtractor

    envs = sb3.common.env_util.make_vec_env(chosen, 8, seed=0)
    settings = {"n_steps": 32, "batch_size": 64, "learning_rate": 1e-3, "ent_coef": 0.01, "seed": 0, "device": "cpu"}
    model = sb3.PPO("MlpPolicy", envs, policy_kwargs={"features_extractor_class": TokenExtractor}, **settings)
    before, _ = evaluate_policy(model, envs, n_eval_episodes=60)
    assert before < 0.7
    model.learn(12_000)
    model.save(tmp_path / "model")
    again = sb3.PPO.load(tmp_path / "model", envs)
    assert evaluate_policy(again, envs, n_eval_episodes=60)[0] >= 0.9


def test_the_extractor_pickles_by_name(sb3):
    from agent_r1_gym.adapters.sb3 import TokenExtractor

    assert pickle.loads(pickle.dumps(TokenExtractor)) is TokenExtractor


@pytest.mark.slow
def test_reinforce_in_the_manner_of_cleanrl_learns_a_bandit():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    torch.manual_seed(0)
    envs = gymnasium.vector.SyncVectorEnv([chosen] * 32, autoreset_mode=gymnasium.vector.AutoresetMode.SAME_STEP)
    observations, _ = envs.reset(seed=0)
    embed = torch.nn.Embedding(int(envs.single_observation_space.nvec[0]), 16)
    net = torch.nn.Sequential(
        embed, torch.nn.Flatten(), torch.nn.Linear(12 * 16, 64), torch.nn.Tanh(), torch.nn.Linear(64, 3)
    )
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
    means: list[float] = []
    for _ in range(200):
        choice = torch.distributions.Categorical(logits=net(torch.as_tensor(observations)))
        actions = choice.sample()
        observations, rewards, *_ = envs.step(actions.numpy())
        means.append(float(rewards.mean()))
        advantages = torch.as_tensor(rewards, dtype=torch.float32) - float(np.mean(means[-10:]))
        loss = -(choice.log_prob(actions) * advantages).mean() - 0.01 * choice.entropy().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    envs.close()
    assert np.mean(means[:5]) < 0.6
    assert np.mean(means[-20:]) >= 0.9


def numbers() -> gymnasium.Env:
    """The bandit as RLlib takes it: its encoders multiply."""
    flat = gymnasium.wrappers.FlattenObservation(chosen())
    return gymnasium.wrappers.DtypeObservation(flat, np.float32)


@pytest.mark.slow
def test_rllib_runs_an_iteration():
    ray = pytest.importorskip("ray", reason="ray is not installed")
    pytest.importorskip("ray.rllib", reason="ray[rllib] is not installed")
    from ray.rllib.algorithms.ppo import PPOConfig
    from ray.tune.registry import register_env

    ray.init(num_cpus=1, include_dashboard=False, configure_logging=False, log_to_driver=False)
    try:
        register_env("arms", lambda _config: numbers())
        config = (
            PPOConfig()
            .environment("arms")
            .env_runners(num_env_runners=0, num_envs_per_env_runner=2, rollout_fragment_length=64)
            .training(train_batch_size=128, minibatch_size=64, num_epochs=1)
            .learners(num_learners=0)
        )
        algorithm = config.build_algo()
        told = algorithm.train()["env_runners"]
        algorithm.stop()
    finally:
        ray.shutdown()
    assert told["num_episodes"] >= 100 and 0 < told["episode_return_mean"] < 1  # of three arms one is right
    assert told["episode_len_mean"] == 1


def test_tianshou_collects_in_its_own_vectors():
    tianshou = pytest.importorskip("tianshou", reason="tianshou is not installed")
    from tianshou.env import DummyVectorEnv

    assert tianshou.__version__
    envs = DummyVectorEnv([chosen] * 3)
    first = np.concatenate([envs.reset(number, seed=number)[0] for number in range(3)])
    assert first.shape == (3, 12)
    _, rewards, terminated, truncated, _ = envs.step(np.array([0, 1, 2]))  # the right arm of each question
    assert rewards.tolist() == [1.0, 1.0, 1.0] and terminated.all() and not truncated.any()
    envs.close()
    texts = DummyVectorEnv([lambda: gymnasium.make("AgentR1/FictionQA-v0", questions=3)] * 2)
    observations, _ = texts.reset(seed=0)
    assert observations.tolist() == [gymnasium.make("AgentR1/FictionQA-v0", questions=3).reset(seed=0)[0]] * 2
    texts.close()


def test_torchrl_finds_the_specification_kept():
    torchrl = pytest.importorskip("torchrl", reason="torchrl is not installed")
    from torchrl.envs import GymWrapper
    from torchrl.envs.utils import check_env_specs

    assert torchrl.__version__
    env = GymWrapper(numbers())
    check_env_specs(env)
    rollout = env.rollout(5)
    assert rollout["next", "reward"].shape == (1, 1)  # an episode is one turn
