"""What the benchmarks share: measuring, cells of an experiment, processes."""
