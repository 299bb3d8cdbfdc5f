"""Which candidate to evaluate next."""
