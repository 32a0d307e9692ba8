"""Boosted trees on columns that several parties hold, in numpy: no networks, no replica axis."""
