"""A model in the status table: its columns and files, the plan of its stages, and their leases.

May import `store`, `settings` and `graph`; it knows neither vendors nor datasets. Start reading in
`columns.py` and `plan.py`; then `upload.py` for how a model gets in and `leases.py` for how
machines share the work. `catalog.py` has what commands do to models.
"""
