"""Fleets: as many runners as the waiting work needs, started by an engine.

Start reading in `supervisor.py`, the loop; `launcher.py` is the seam to engines, and `local.py` and
`ray/` implement it. `kubernetes.py` renders the Helm chart in `chart/` for a cluster, where KEDA
does the scaling.
"""
