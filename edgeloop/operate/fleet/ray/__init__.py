"""Fleets on Ray: detached actors that keep runners alive, one for each runner and one for the
supervisor.

A walk: `submit.py` on the laptop sends a job, whose program `start.py` creates the actor of
`node.py` on a node, which keeps `supervise.py` alive. `start.py` and `node.py` run before a node is
ready for Edgeloop, so they need only Ray and the standard library.
"""
