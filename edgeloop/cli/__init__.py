"""The command line: each command parses its options, calls one function, and prints.

Above all other rooms, which it may import. Most of these imports are inside functions, so that
`edgeloop --help` starts instantly. Start reading in `app.py`, which lists the commands by file and
turns errors into messages and exit codes, and has the options that commands share; `terminal.py`
prints. Logic belongs in the room that a command calls.
"""

from __future__ import annotations

from edgeloop.cli.app import main

__all__ = ["main"]
