"""Which candidate to evaluate next.

Start reading in `proposer.py`; `surrogate.py` predicts results, `acquisition.py` ranks candidates
by them, and `bank.py` decides which members of a space to screen. Needs neither torch nor Optuna.
"""
