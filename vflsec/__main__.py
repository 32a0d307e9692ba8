"""``python -m vflsec`` is the command line."""

import sys

from vflsec.cli import main

sys.exit(main())
