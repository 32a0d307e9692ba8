"""What several attacks share: completions, regressions, orientations, clusterings."""
