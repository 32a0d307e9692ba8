"""An outside package for vflsec; importing it must not import the classes it registers."""
