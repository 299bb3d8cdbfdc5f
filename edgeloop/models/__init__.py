"""A model in the status table: its row, its files, the plan of its stages, and their leases.

May import `store`, `settings` and `graph`; it knows neither vendors nor datasets. Start reading in
`plan.py`, the table of stages, and `row.py`, the columns; then `upload.py` for how a model gets in
and `leases.py` for how machines share the work. `catalog.py` has what commands do to models.
"""
