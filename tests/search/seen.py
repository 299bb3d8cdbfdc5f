"""Folders of searches of any size, written by the code that writes them while a search runs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import yaml

from edgeloop.search.config import SearchConfig, config_of
from edgeloop.search.nets.architecture import Architecture
from edgeloop.search.results import RunningTables, write_tables
from edgeloop.search.study import Candidate

CHIPS = ("htp:qcs8550", "htp:x-elite", "htp:sa8295p", "htp:qcs6490", "htp:8-gen-3", "htp:888")
_MORE = ("htp:snapdragon-8-gen-2", "htp:qcs9075", "htp:sa8775p")


def document(chips: int = 1, **search: object) -> dict[str, Any]:
    latency = {"device": CHIPS[0]} if chips == 1 else {"devices": list((*CHIPS, *_MORE)[:chips])}
    return {
        "search": {"name": "seen", "size": 64, "budget": 300, **search},
        "objectives": {
            "chip_latency_ms": {**latency, "goal": "min"},
            "val_iou": {"goal": "max", "train": {"epochs": 9}},
        },
        "data": "working/none",
        "experiment": "default",
    }


def candidates(config: SearchConfig, count: int, seed: int = 0) -> list[Candidate]:
    """Of every tenth nothing comes, and every tenth is stopped early; two thirds of the rest are
    small or large enough to be worth something."""
    chance = Random(seed)
    found = []
    for number in range(count):
        params: dict[str, Any] = {
            "stem_stride": chance.choice([2, 4]),
            "base_channels": chance.choice([8, 12, 16, 24]),
            "h0.kernel": chance.choice(["conv3x3", "conv5x5"]),
            "layers": chance.randint(1, 4),
            "unused": round(chance.uniform(0.5, 2), 4),
        }
        if params["stem_stride"] == 2:
            params["last_layers"] = chance.randint(0, 2)
        work = params["base_channels"] ** 1.2 * params["layers"] / params["stem_stride"]
        values = {
            name: 0.02 * work * (1 + 0.2 * place) + chance.uniform(0.05, 0.12 + 0.05 * place)
            for place, name in enumerate(
                o.name for o in config.objectives if o.name.startswith("chip_latency_ms")
            )
        }
        iou = 0.75 - 0.5 * math.exp(-work / 14) - abs(chance.gauss(0, 0.05))
        state, reason = "complete", ""
        if number % 10 == 3:
            state, reason = "failed", "the loss is NaN, at step 3 of <b>10</b>"
        elif number % 10 == 6:
            state = "stopped"
        if state != "failed":
            values["val_iou"] = iou if state == "complete" else iou - 0.1
        arch = Architecture("hourglass", params, (1, 3, 64, 64), 19)
        found.append(Candidate(number, arch, params, state, values, reason))  # type: ignore[arg-type]
    return found


def learning_curves(found: Iterable[Candidate]) -> str:
    lines = ["arch_id,epoch,step,loss,val_f1,val_iou,seconds"]
    for item in found:
        if "val_iou" in item.values:
            for epoch in range(1, 10 if item.state == "complete" else 4):
                iou = item.values["val_iou"] * (1 - math.exp(-epoch / 3))
                lines.append(f"{item.arch.id},{epoch},{10 * epoch},{1 / epoch},{iou},{iou},{epoch}")
    return "\n".join(lines) + "\n"


def write_seen(
    folder: Path,
    count: int,
    chips: int = 1,
    *,
    is_running: bool = False,
    curves: bool = True,
    taken: int = 0,
    search: Mapping[str, object] | None = None,
) -> SearchConfig:
    """As a search leaves it, or as it looks while it runs. The first `taken` candidates are those
    of an earlier search."""
    folder.mkdir(parents=True)
    written = document(chips, **(search or {}))
    (folder / "search.yaml").write_text(yaml.safe_dump(written))
    config = config_of(written, "search.yaml")
    found = candidates(config, count)
    found[:taken] = [replace(i, earlier="old", skipped=i.number + 1) for i in found[:taken]]
    tables = RunningTables(folder, config, ("training_time",), [])
    for item in found:
        tables.append(replace(item, values={**item.values, "training_time": 1.5}))
    if curves:
        (folder / "curves.csv").write_text(learning_curves(found))
    if is_running:
        with (folder / "candidates.csv").open("a") as file:
            file.write("99,9,id_cut_o")
    else:
        tables.finish()
        write_tables(folder, config, found)
    return config
