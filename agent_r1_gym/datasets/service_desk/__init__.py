"""A shop that does not exist, from a seed: its policy, its company, its tickets, and the gold that follows."""
