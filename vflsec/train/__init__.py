"""Trains cohorts of cells: specifications in, recorded Views out.

Called itself, the package trains one system: see `vflsec.api.train`.
"""

from vflsec.runtime.callable_package import callable_as

callable_as(__name__)
