"""`python -m benchmarks.trainer_speed` is its `run.py`."""

from benchmarks.trainer_speed.run import main

main()
