"""`python -m benchmarks.credit` is its `run.py`."""

from benchmarks.credit.run import main

raise SystemExit(main())
