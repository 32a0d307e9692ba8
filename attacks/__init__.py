"""One attack per file; the file's name is the registered name. Import as ``vflsec.attacks``."""

if __name__ != "vflsec.attacks":
    raise ImportError(
        "import 'vflsec.attacks', not 'attacks': a second copy of every class would be made"
    )
