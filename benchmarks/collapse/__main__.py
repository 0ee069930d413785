"""`python -m benchmarks.collapse` is its `run.py`."""

from benchmarks.collapse.run import main

raise SystemExit(main())
