"""The runner: claims stages of models and performs them, on any number of machines at once.

May import `models`, `workspace`, `platforms`, `tasks`, `graph` and `tuning`, and what is below
them. Start reading in `loop.py`, which starts one worker for the machine and one per device, then
`worker.py` (claim, fetch, perform, store, commit) and `stages/`, which computes and never writes to
the store.
"""
