"""`agent-r1 launch`: scripts for several nodes, beside the configurations that Accelerate reads."""
