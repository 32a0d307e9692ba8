"""Data: built-in sets, the user's own tables, and toy worlds with known leaks."""
