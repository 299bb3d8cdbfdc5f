"""Exact rewrites: replace operators that compilers refuse or run slowly, without changing results.

Start reading in `registry.py`, which lists all of them; `apply.py` applies them, `checking.py`
proves with numbers that the model still computes the same. `editor.py` is a graph while it changes,
and the other modules are the rewrites.
"""
