"""Runs attacks and their controls: a View in, guesses out."""
