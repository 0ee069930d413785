"""What the benchmarks share: measuring, cells of an experiment, models, processes."""
