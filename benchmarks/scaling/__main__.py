"""`python -m benchmarks.scaling` is its `run.py`."""

from benchmarks.scaling.run import main

raise SystemExit(main())
