"""How attacks, defenses, algorithms and data sets are found and registered."""
