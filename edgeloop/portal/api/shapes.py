"""What the API takes and gives, where the pages have no shape for it."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from edgeloop.portal.views.shapes import DayUse, FileView, StageView, Work

Cell = str | int | float | bool | None


class Problem(BaseModel):
    """What went wrong, in a sentence."""

    detail: str


class Health(BaseModel):
    status: Literal["ok", "loading", "stale"]
    version: str
    read_at: float | None = Field(description="When the store last answered.")


class Session(BaseModel):
    token: str = Field(description="Send it as X-Edgeloop-Token with a change, with the cookie.")
    allow_changes: bool


class Experiment(BaseModel):
    name: str


class ModelRow(BaseModel):
    """`values` are the columns of the row, without long ones; NaN and infinity are null."""

    name: str
    status: str
    error: str
    tags: list[str]
    device: str
    work: list[Work]
    waiting: list[str] = Field(description="Stages that a runner could take now.")
    values: dict[str, Cell]


class ModelPage(BaseModel):
    event: str
    total: int
    matching: int
    page: int
    pages: int
    counts: dict[str, int]
    models: list[ModelRow]


class ModelDetail(BaseModel):
    model: ModelRow
    stages: list[StageView]
    files: list[FileView]


class Usage(BaseModel):
    days: list[DayUse]


class _Change(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Reset(_Change):
    stages: list[str] = Field(
        default=[],
        max_length=50,
        description="These and those that stand on them; empty means all.",
    )


class Priority(_Change):
    priority: int | None = Field(
        ge=0, le=2**31 - 1, description="Lower is sooner; null gives back the stages' own."
    )


class Delete(_Change):
    pass


class Done(BaseModel):
    name: str
    done: str
    stages: list[str] = []
