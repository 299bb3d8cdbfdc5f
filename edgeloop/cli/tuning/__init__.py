"""layers, advise, precision and gate: where the time goes, what would help, and what may ship."""
