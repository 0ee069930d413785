"""`python -m benchmarks.multihop_qa` is its `run.py`."""

from benchmarks.multihop_qa.run import main

raise SystemExit(main())
