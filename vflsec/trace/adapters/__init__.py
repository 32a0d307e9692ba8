"""Adapters of other frameworks: each records, as a trace, what crosses between its parties."""
