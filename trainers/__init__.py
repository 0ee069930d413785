"""The bundled trainer: multi-turn reinforcement learning of language-model agents, on top of TRL's `GRPOTrainer`."""

from agent_r1_gym.support.openmp import spin_briefly

spin_briefly()  # before any module here loads torch
