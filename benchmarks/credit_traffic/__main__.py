"""`python -m benchmarks.credit_traffic` is its `run.py`."""

from benchmarks.credit_traffic.run import main

main()
