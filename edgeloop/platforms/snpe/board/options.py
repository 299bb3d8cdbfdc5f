"""How long boards are waited for, and how much they may hold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from edgeloop.settings import Settings

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


def board_options(settings: Settings) -> BoardOptions:
    return BoardOptions(
        tool_s=settings.board_tool_seconds,
        transfer_s=settings.board_transfer_seconds,
        probe_s=settings.board_probe_seconds,
        call_s=3 * settings.board_probe_seconds,
        grace_s=1.5 * settings.board_probe_seconds,
        cap_bytes=int(settings.board_cache_mb * 1e6),
        hot_c=settings.board_hot_celsius,
    )
