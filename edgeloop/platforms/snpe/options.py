"""The settings of boards and of the SDK, and the limits that follow from them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from edgeloop._util.schema import Section, Text
from edgeloop._util.values import number

DEFAULT_CAP_BYTES = 4 * 10**9
_Positive = Annotated[float, number(is_open=True)]


class SnpeSettings(Section):
    """Keys of `edgeloop.yaml`."""

    snpe_root: Text = Field(
        "",
        description="Folder of the Neural Processing SDK; `SNPE_ROOT` and `QAIRT_SDK_ROOT` take "
        "precedence.",
        json_schema_extra={"environment": ["SNPE_ROOT", "QAIRT_SDK_ROOT"]},
    )
    board_tool_seconds: _Positive = Field(600.0, description="How long a tool may run on a board.")
    board_transfer_seconds: _Positive = Field(
        600.0, description="How long a transfer to or from a board may take."
    )
    board_probe_seconds: _Positive = Field(10.0, description="How long a board may take to answer.")
    board_cache_mb: _Positive = Field(
        4_000.0, description="Space for cached test images on a board."
    )
    board_hot_celsius: _Positive = Field(
        75.0, description="A benchmark waits until the board is cooler than this."
    )

    @property
    def board_options(self) -> BoardOptions:
        return BoardOptions(
            tool_s=self.board_tool_seconds,
            transfer_s=self.board_transfer_seconds,
            probe_s=self.board_probe_seconds,
            call_s=3 * self.board_probe_seconds,
            grace_s=1.5 * self.board_probe_seconds,
            cap_bytes=int(self.board_cache_mb * 1e6),
            hot_c=self.board_hot_celsius,
        )


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
