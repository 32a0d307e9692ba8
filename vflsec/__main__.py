"""``python -m vflsec`` is the command line."""

import sys

from vflsec.cli.main import main

sys.exit(main())
