"""Short names for the small worlds of `vflsec.testing`."""

from vflsec.testing import small_stack as stack
from vflsec.testing import small_task

__all__ = ["small_task", "stack"]
