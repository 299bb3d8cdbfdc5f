"""Figures, measured side by side in one run. `make bench` prints them; RESULTS.md keeps them."""
