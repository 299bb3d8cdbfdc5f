"""snpe-diagview: what a run's log says, as text and as a table."""

from __future__ import annotations

import argparse
import csv
import json
import sys
from pathlib import Path
from typing import Any

NAME = "snpe-diagview"
_COLUMNS = (
    "Timestamp",
    "Message Name",
    "Layer Id",
    "Message Value",
    "Unit of Measurement",
    "Runtime",
)
_AVERAGES = ("Total Inference Time", "Forward Propagate Time")


def main(arguments: list[str], version: str) -> int:
    parser = argparse.ArgumentParser(NAME, allow_abbrev=False)
    parser.add_argument("--input_log", required=True)
    parser.add_argument("--output")
    parser.add_argument("--csv_format_version", type=int, choices=(1, 2), default=1)
    options = parser.parse_args(arguments)
    try:
        log = json.loads(Path(options.input_log).read_bytes())
    except (OSError, ValueError) as error:
        print(f"Failed to read {options.input_log}: {error}", file=sys.stderr)
        return 1
    _print(log, version)
    if options.output:
        with Path(options.output).open("w", newline="") as file:
            csv.writer(file).writerows(_rows(log))
    return 0


def _rows(log: dict[str, Any]) -> list[tuple[object, ...]]:
    now, runtime = log["timestamp_us"], log["runtime"]
    rows: list[tuple[object, ...]] = [_COLUMNS]
    rows += [(now, name, "", value, "us", "NONE") for name, value in log["life_us"].items()]
    for name in _AVERAGES:
        value = log["average_us"]
        rows.append((now, f"avg_{name.lower().replace(' ', '_')}", "", value, "us", "NONE"))
    rows += [
        (now, f"layer_{number}", number, value, log["layer_unit"], runtime)
        for number, value in enumerate(log["layers"])
    ]
    return rows


def _print(log: dict[str, Any], version: str) -> None:
    print(f"Time Scale: 1e-06\nSoftware library version: {version}\n")
    print("Dnn Runtime Load/Deserialize/Create/De-Init Statistics:\n" + "-" * 50)
    for name, value in log["life_us"].items():
        print(f"{name}: {value} us")
    print("\nAverage SNPE Statistics:\n" + "-" * 30)
    for name in _AVERAGES:
        print(f"{name}: {log['average_us']} us")
    if log["layers"]:
        print("\nLayer Times:\n---------------")
    for number, value in enumerate(log["layers"]):
        print(f"{number}: {value} {log['layer_unit']} : {log['runtime']}")
