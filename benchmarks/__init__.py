"""Benchmarks: one file a claim, settings as data, results as JSON lines; README.md says the command of each number."""
