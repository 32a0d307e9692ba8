"""Seals: whether what is read back is what vflsec wrote.

A seal is a hash beside the value. No key is in it, so it finds damage and edits by hand, and is no
proof against somebody who writes vflsec's files with a program of their own. What has no seal is
refused like what was edited.
"""

from __future__ import annotations

EDITED = "it was edited or damaged since vflsec wrote it"
