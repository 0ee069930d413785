"""`python -m benchmarks.gpu` is its `run.py`."""

from benchmarks.gpu.run import main

main()
