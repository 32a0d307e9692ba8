"""Runs attacks and their controls: a View in, guesses out.

Called itself, the package measures a trained system: see `vflsec.api.measure`.
"""

from vflsec._callable import callable_as

callable_as(__name__)
