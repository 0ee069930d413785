"""`python -m benchmarks.vllm` is its `run.py`."""

from benchmarks.vllm.run import main

main()
