"""Bottom and top models, and the replica axis."""
