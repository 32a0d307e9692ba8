"""Straightforward implementations of the published attacks, to hold the package's own beside.

Each is written from its paper alone, with the paper's settings, on numpy, scikit-learn or plain
torch: no tuning, no choice between variants, and no line shared with the package's attacks. It
takes :class:`independent.seen.Seen`, plain arrays, and returns sample ids with their scores.
"""
