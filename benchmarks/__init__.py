"""Benchmarks: one folder per claim, settings as data, results as JSON; README.md names the command of each number."""
