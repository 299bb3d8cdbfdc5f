"""All code that runs inside a job, on a node that has Python 3.8 or newer and no Edgeloop.

Two processes, so that no single kill loses anything. The *launcher* is what a compute started: it
shows the log and forwards signals. The *supervisor*, in a session of its own, lays out code and
data, runs the command, and copies log, outputs and state to the store. If one is killed, the other
ends the command and copies what is there.

May import the standard library, `errors`, `paths`, `store.base` and the modules of `_util` that
`jobs/bundle.py` lists. Start reading in `launcher.py`; docs/reference/inside-a-job.md says what a
script can rely on.
"""
