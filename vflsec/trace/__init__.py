"""Recorded traces: what one party saw, as files, and Views made of them.

``record`` (in someone's training loop) and ``export`` (of a simulation) write through ``writer``;
``seal`` turns the stream into Parquet with counts and hashes; ``reader`` trusts nothing it reads;
``views`` gives attacks what a live run would have given them; only the scorer opens ``truth``.
The format is described in ``docs/trace_format.md``.
"""
