"""Runs per second of the code sandbox and of the calculator."""
