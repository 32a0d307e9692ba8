"""Measured bounds on epsilon, and claims beside them."""
