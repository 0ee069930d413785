"""What a run would take on other machines: a model, and its check against measured runs."""
