"""vflsec: privacy audits of vertical federated learning.

Reading order for the mental model: `message`, `channel`, `policy`, `view`, `guess`.
"""

from vflsec._version import __version__

__all__ = ["__version__"]
