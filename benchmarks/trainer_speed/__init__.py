"""Speed of the trainer, beside TRL's own multi-turn path."""
