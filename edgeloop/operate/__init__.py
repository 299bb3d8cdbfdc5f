"""Operating a farm: fleets of runners, Azure resources, clean-up, store checks and services.

May import `runner`, `jobs`, `models`, `workspace`, `platforms`, `tasks`, `node` and what is below
them; only `view` and `cli` are above it. Start reading in `fleet/supervisor.py` for the number of
runners, `gc.py` for orphaned files, `integrity.py` for `store check`, `doctor.py` for what a
machine lacks.
"""
