"""`python -m benchmarks.discovery` is its `run.py`."""

import sys

from benchmarks.discovery.run import main

sys.exit(main())
