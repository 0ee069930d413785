"""`python -m benchmarks.env_speed` is its `run.py`."""

from benchmarks.env_speed.run import main

main()
