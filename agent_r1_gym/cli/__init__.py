"""The subcommands of `agent-r1`, one file each: `add_arguments(parser)` and `run(options) -> exit status`."""
