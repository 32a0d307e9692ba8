"""What will run, what cannot and why, and what it will cost, as values."""
