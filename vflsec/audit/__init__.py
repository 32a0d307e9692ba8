"""The statistics of leakage: metrics, intervals, controls, advantage, summaries, gates."""

from vflsec.audit.summary import cap, dcs, relative_improvement, relative_risk

__all__ = ["cap", "dcs", "relative_improvement", "relative_risk"]
