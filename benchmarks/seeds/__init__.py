"""Behind benchmarks/evidence_seeds.py: claims, trials, the rule of verdicts, the page."""
