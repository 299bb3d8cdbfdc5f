"""Latency estimates against the chip maker's published figures, on public networks."""
