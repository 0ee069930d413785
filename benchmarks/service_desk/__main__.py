"""`python -m benchmarks.service_desk` is its `run.py`."""

from benchmarks.service_desk.run import main

main()
