"""What one GPU does with the trainer: rollouts, steps, memory, decoding, and a model that learns."""
