"""Runs attacks and their controls: a View in, guesses out.

Called itself, the package measures a trained system: see `vflsec.api.measure`.
"""

from vflsec.runtime.callable_package import callable_as

callable_as(__name__)
