"""Reads a scenario: strict TOML, sections, components, and every problem with its place."""
