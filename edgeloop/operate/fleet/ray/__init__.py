"""Fleets on Ray: detached actors that keep runners alive, one for each runner and one for the
supervisor.

What runs on nodes before they are ready for Edgeloop needs only Ray and the standard library, so
nothing is imported here before it is used.
"""
