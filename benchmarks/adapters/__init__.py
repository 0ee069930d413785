"""What another library adds to a step: one module per library or two, each started as `python -m`."""
