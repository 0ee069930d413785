"""`python -m benchmarks.credit.traffic` is its `run.py`."""

from benchmarks.credit.traffic.run import main

main()
