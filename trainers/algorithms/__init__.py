"""Credit: advantages, their estimators, the critic, and the tensors they work on."""
