"""The pieces of evidence_few_overlap.py: worlds, what is run in them, how, and the words."""
