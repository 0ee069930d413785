"""`python -m agent_r1_gym` is `agent-r1`."""

import sys

from agent_r1_gym.cli.main import main

sys.exit(main())
