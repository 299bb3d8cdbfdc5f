"""Jobs: run a script on another machine, with its code and data, and fetch its results.

May import `node`, `settings` and `store`, and knows nothing of models. Start reading in
`client.py`, then `spec.py` (what people write), `submit.py` (from a specification to a ticket in
the store) and `watch.py` (its state). `computes/` has one module per kind of machine; the code
that runs inside a job is the room `node`, which `bundle.py` packs into one file.
"""
