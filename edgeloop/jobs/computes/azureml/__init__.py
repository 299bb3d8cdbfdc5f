"""Azure ML: the clusters of a workspace as a compute.

Start reading in `compute.py`; `orders.py` makes Azure ML jobs, `runs.py` reads their states.
Azure's SDK is imported only inside functions. `operate/azure.py` creates what a workspace lacks, as
described in `resources.py`.
"""
