"""Names: which are allowed, friendly ones for models that come without, and the order of lists;
and what a file of a model is, as its name says."""

from __future__ import annotations

import fnmatch
import functools
import random
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from edgeloop.errors import BadName

MODEL_NAME_LIMIT = 100
EXPERIMENT_NAME_LIMIT = 40
RESERVED_EXPERIMENTS = frozenset(
    {"usage", "tables", "edgeloopqueue", "edgeloop-runners", "edgeloop-fleets"}
)
_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_EXPERIMENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
_NUMBER = re.compile(r"0*([0-9]+)")
_FIRST_SHOWN = {"running": 0, "error": 1, "failed": 1}


def check_model_name(name: str) -> str:
    """Names become row keys, blob folders and local folders, so they are plain everywhere."""
    if len(name) > MODEL_NAME_LIMIT:
        shown = f"{name[:20]}…"
        reason = f"it has {len(name)} characters; {MODEL_NAME_LIMIT} are the limit"
        raise BadName(what="name", name=shown, reason=reason)
    if not _PLAIN.fullmatch(name):
        reason = "use letters, digits, '.', '_' and '-', and begin with a letter or digit"
        raise BadName(what="name", name=name, reason=reason)
    return name


def check_experiment_name(name: str) -> str:
    if not 3 <= len(name) <= EXPERIMENT_NAME_LIMIT:
        reason = f"it must have 3 to {EXPERIMENT_NAME_LIMIT} characters"
        raise BadName(what="experiment", name=name[:60], reason=reason)
    if not _EXPERIMENT.fullmatch(name):
        reason = "use letters, digits, '_' and '-', and begin with a letter or digit"
        raise BadName(what="experiment", name=name, reason=reason)
    if name.lower() in RESERVED_EXPERIMENTS:
        raise BadName(what="experiment", name=name, reason="Edgeloop keeps that name for itself")
    return name


def natural_key(name: str) -> str:
    """Sorts names as people count: `net-2` before `net-10`, whatever the case of the letters."""
    counted = _NUMBER.sub(lambda found: f"{len(found[1]):03}{found[1]}", name.casefold())
    return f"{counted}\0{name}"


FileGroup = Literal["deploy", "result", "other"]


@dataclass(frozen=True)
class FileRole:
    """What a file is for. Lists show files to deploy first, the most specific ones before others,
    then results, then the rest. `about` is a few words for people; empty where there are none."""

    group: FileGroup
    rank: int
    about: str = ""


OTHER_FILE = FileRole("other", 30)
# Ending, place in lists, words. Longer endings come first: `.dlc` is also how `.quant.dlc` ends.
_DEPLOYED = (
    (".classes.quant.dlc", 5, "quantized, for Qualcomm's tools, ends in classes"),
    (".classes.dlc", 6, "float, for Qualcomm's tools, ends in classes"),
    (".quant.dlc", 2, "quantized, for Qualcomm's tools"),
    (".dlc", 3, "float, for Qualcomm's tools"),
    (".quant.onnx", 4, "quantized, for ONNX Runtime"),
    (".ctx.onnx", 1, "loads the context binary in ONNX Runtime"),
    (".bin", 0, "context binary"),
)
_FOR_A_CHIP = (".ctx.onnx", ".bin")
_RESULTS = (
    ("perf_results", "latency and times of layers"),
    ("test_results", "scores"),
    ("pr_curve", "precision and recall"),
    ("examples_", "images of the test"),
)
_DETAILS = (".json", ".yaml", ".yml", ".csv", ".html", ".txt")


def file_role(name: str, is_uploaded: bool = False) -> FileRole:
    """By the names that stages give, see docs/reference/rows.md. What was uploaded is the model
    itself or belongs to it, whatever it is called."""
    if name.endswith(".onnx") and (is_uploaded or not name.endswith((".quant.onnx", ".ctx.onnx"))):
        return FileRole("deploy", 7, "float, as uploaded" if is_uploaded else "float")
    if is_uploaded:
        is_detail = name.endswith(_DETAILS)
        return OTHER_FILE if is_detail else FileRole("deploy", 8, "weights, as uploaded")
    for suffix, rank, about in _DEPLOYED:
        if name.endswith(suffix):
            chip = name.removesuffix(suffix).rpartition(".")[2] if suffix in _FOR_A_CHIP else ""
            is_known = chip and chip != name.removesuffix(suffix)
            return FileRole("deploy", rank, f"{about}, for {chip}" if is_known else about)
    for rank, (prefix, about) in enumerate(_RESULTS, start=10):
        if name.startswith(prefix):
            return FileRole("result", rank, about)
    if name.endswith((".layers.csv", ".layers.html")):
        return FileRole("result", 20, "table of layers")
    return OTHER_FILE


def attention_rank(status: str) -> int:
    """For lists that show first what somebody may want to act on: running models, failed ones, and
    then all others, each in natural order."""
    return _FIRST_SHOWN.get(status.partition(" ")[0], 2)


def can_be_key(name: str) -> bool:
    """Whether a row may have this name; wider than what we allow, since old tables came before.
    Azure takes what is not for a fault of the service, and tries again and again."""
    return bool(name) and name.isprintable() and not any(char in name for char in "/\\#?")


def check_file_name(name: str) -> str:
    """A model's file keeps its own name; it only may not be a path or hide control characters."""
    unprintable = any(ord(char) < 32 or ord(char) == 127 for char in name)
    if not name or name in (".", "..") or "/" in name or "\\" in name or unprintable:
        reason = "a file's name may not hold slashes or control characters"
        raise BadName(what="file", name=name, reason=reason)
    if len(name.encode(errors="surrogateescape")) > 240:
        raise BadName(what="file", name=f"{name[:20]}…", reason="it is longer than 240 bytes")
    try:
        name.encode()
    except UnicodeEncodeError:
        raise BadName(what="file", name=name, reason="it is not valid UTF-8") from None
    return name


def friendly_names(source: random.Random | None = None) -> Iterator[str]:
    """Adjective and animal; after a few that were taken, with a number that grows."""
    dice = source or random.SystemRandom()
    adjectives, animals = friendly_words()
    for attempt in range(1_000):
        name = f"{dice.choice(adjectives)}-{dice.choice(animals)}"
        yield name if attempt < 8 else f"{name}-{dice.randrange(2, 10 + attempt**2)}"


@functools.cache
def friendly_words() -> tuple[list[str], list[str]]:
    """The adjectives and the animals in `words.txt`: two blocks of words under a comment each."""
    text = Path(__file__).with_name("words.txt").read_text(encoding="utf-8")
    adjectives, animals = (block.partition("\n")[2].split() for block in text.split("\n\n"))
    return adjectives, animals


def is_pattern(text: str) -> bool:
    return any(char in text for char in "*?[")


def matches(name: str, pattern: str) -> bool:
    """Globs as a shell reads them, on every system case-sensitive."""
    return fnmatch.fnmatchcase(name, pattern)


def matches_any(name: str, patterns: Collection[str]) -> bool:
    """Whether it matches one of the globs; without globs every name does."""
    return not patterns or any(matches(name, pattern) for pattern in patterns)
