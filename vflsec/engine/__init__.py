"""From a scenario to results: plan, train, attack, score, store."""
