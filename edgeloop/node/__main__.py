"""`python -m edgeloop.node`: the same as the bundle, out of an installed Edgeloop."""

from __future__ import annotations

import sys

from edgeloop.node.launcher import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
