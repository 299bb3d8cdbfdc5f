"""What can be told about boards."""

from __future__ import annotations

from dataclasses import dataclass

DEFAULT_CAP_BYTES = 4 * 10**9


@dataclass(frozen=True)
class BoardOptions:
    """Every wait has an end; tests make them short."""

    tool_s: float = 600.0
    grace_s: float = 15.0  # beyond the board's own limit, for the way there and back
    call_s: float = 60.0
    probe_s: float = 10.0
    transfer_s: float = 600.0
    lease_s: float = 60.0
    cap_bytes: int = DEFAULT_CAP_BYTES
    hot_c: float = 75.0
    cool_poll_s: float = 5.0
    cool_limit_s: float = 300.0
    benchmark_inputs: int = 50
    squeeze: bool | None = None
