"""Starts a stand-in by name, from anywhere: `python -I launch.py VERSION TOOL ARGUMENTS…`."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[4]))
    version, tool = sys.argv[1:3]
    module = importlib.import_module(f"tests.peers.board.tools.{tool}")
    sys.exit(module.main(sys.argv[3:], version))
