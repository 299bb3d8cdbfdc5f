"""Exact rewrites: replace operators that compilers refuse or run slowly, without changing results.

Start reading in `catalog.py` (names and meanings) and `apply.py`, which applies rewrites and checks
the numbers; `registry.py` has the functions, `editor.py` the graph while it changes.
"""
