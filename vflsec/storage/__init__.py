"""Stores, results directories and their seals."""
