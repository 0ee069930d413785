"""vLLM as the trainer uses it: what a slow tool costs the others, and what new weights cost."""
