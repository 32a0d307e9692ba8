"""Trains cohorts of cells: specifications in, recorded Views out."""
