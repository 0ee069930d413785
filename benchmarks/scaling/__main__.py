"""`python -m benchmarks.scaling` is its `run.py`."""

import sys

from benchmarks.scaling.run import main

sys.exit(main())
