"""`python -m benchmarks.sandbox` is its `run.py`."""

from benchmarks.sandbox.run import main

main()
