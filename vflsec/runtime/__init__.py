"""Files, locks, processes and numerical settings; nothing here knows what vflsec audits."""
