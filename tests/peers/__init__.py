"""Real servers for tests, each private to one pytest process and listening on loopback only.

A peer is a context manager. `stop()` and `kill()` end it, and `start()` brings it back on the same
port with the same data, so that a test can take a server away under load and give it back.
"""
