"""One attack per file; the file's name is the registered name. Import as ``vflsec.attacks``."""

if __name__ != "vflsec.attacks":
    raise ImportError("import 'vflsec.attacks', not 'attacks'")
