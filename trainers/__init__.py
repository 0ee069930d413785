"""The bundled trainer: multi-turn reinforcement learning of language-model agents, on top of TRL's `GRPOTrainer`."""
