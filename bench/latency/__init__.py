"""Latency estimates against the chip maker's published figures, on public networks.

python -m bench latency published WHEEL    the figures, from the vendor's package
python -m bench latency export [NAME…]     the networks, rebuilt without weights (requirements.txt)
python -m bench latency compile [NAME…]    what the compiler says of each
python -m bench latency fit                profiles and tables from the two
"""

from __future__ import annotations

from importlib import import_module

STEPS = ("published", "export", "compile", "fit")


def run(step: str = "fit", *options: str) -> str:
    if step not in STEPS:
        return f"unknown step {step!r}: choose from {', '.join(STEPS)}"
    module = import_module(f"bench.latency.{step}")
    return str(module.run(*options))
