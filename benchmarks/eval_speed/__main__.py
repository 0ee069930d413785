"""`python -m benchmarks.eval_speed` is its `run.py`."""

from benchmarks.eval_speed.run import main

main()
