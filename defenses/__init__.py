"""One defense per file; the file's name is the registered name. Import as ``vflsec.defenses``."""

if __name__ != "vflsec.defenses":
    raise ImportError("import 'vflsec.defenses', not 'defenses'")
