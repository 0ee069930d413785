"""What knows nothing of agents: checks of arguments, files, threads, terminal output."""
