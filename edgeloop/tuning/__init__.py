"""Tuning: make a model faster or more accurate on a chip, judged by its compiler and simulator.

May import `platforms`, `tasks`, `graph`, `settings` and `pareto`; it works on files and knows
neither rows nor stores. Start reading in `lab.py`, which compiles and simulates variants and caches
the answers, then `advice.py` (rewrites), `precision.py` (bits per tensor), `recovery.py`
(accuracy lost to quantization) or `gate.py` (a model against a baseline). `worker.py` runs in
worker processes.
"""
