"""A shop that does not exist: its policy, its company, its tickets, and the gold that follows from them; from a seed."""
