"""The statistics of leakage: metrics, intervals, controls, advantage, gates."""
