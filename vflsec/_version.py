"""The version, in a file of its own so that builds and the command line read it without torch."""

__version__ = "0.1.0"
