"""Networks that a search can build and train: spaces, architectures, export, and training.

Needs `edgeloop.tasks` for data and scores. Spaces and architectures can be read without torch;
`layers.py`, `engine.py` and `train.py` need it. Start reading in `spaces.py`, then `train.py`.
"""
