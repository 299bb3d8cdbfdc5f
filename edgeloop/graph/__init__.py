"""ONNX graphs, independent of any vendor: check, simplify, count, rewrite, describe.

May import only `errors`, `_util` and `paths`. A hostile or broken file can crash the ONNX library,
so callers use `isolated.py`, which reads graphs in a child process (`worker.py`). Start reading in
`info.py`, the values that other rooms know, then `check.py`; `rewrites/` changes graphs without
changing what they compute.
"""
