"""What is done to a model: inputs in, result out; the worker stores and commits it.

Start reading in `base.py`, which has the shapes and calls the function that the plan names; then
`convert.py`, `benchmark.py` and `accuracy.py`.
"""
