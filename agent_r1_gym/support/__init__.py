"""What knows nothing of agents: checks of arguments, files, HTTP, threads, terminal output."""
