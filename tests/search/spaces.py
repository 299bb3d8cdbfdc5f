"""Spaces to search in tests, by hand and by chance."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

from hypothesis import strategies as st


def with_another_hash_seed(program: str) -> Any:
    """What a program prints, as JSON, in a process whose sets have another order than ours."""
    seed = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(filter(None, sys.path))},
        capture_output=True,
        check=True,
        timeout=120,
    )
    return json.loads(done.stdout)


WORDS = ("red", "green", "blue", "grey")


def branching(trial):
    """Eleven members: a branch that asks more questions than the other."""
    if trial.suggest_categorical("kind", ("plain", "fancy")) == "plain":
        trial.suggest_int("size", 1, 3)
    else:
        trial.suggest_categorical("colour", WORDS)
        trial.suggest_float("depth", 0.0, 0.5, step=0.5)


def mixed(trial):
    """All kinds of questions; a second block only where the first says so."""
    blocks = trial.suggest_int("blocks", 1, 2)
    for block in range(blocks):
        trial.suggest_categorical(f"op{block}", ("conv", "pool", "skip"))
        trial.suggest_categorical(f"width{block}", (16, 24, 32, 48))
        trial.suggest_int(f"layers{block}", 1, 4)
    trial.suggest_float("rate", 1e-4, 1e-1, log=True)
    trial.suggest_float("share", 0.0, 1.0)
    trial.suggest_int("batch", 1, 64, log=True)


def mixed_costs(params):
    """A trade-off between size and error with a best setting for the rest."""
    size, merit = 0.0, 0.0
    for block in range(params["blocks"]):
        factor = {"conv": 3.0, "pool": 1.0, "skip": 0.5}[params[f"op{block}"]]
        size += params[f"layers{block}"] * params[f"width{block}"] * factor
        merit += params[f"layers{block}"] * factor**0.5 * params[f"width{block}"] ** 0.3
    error = 10 / (1 + merit) + (params["share"] - 0.3) ** 2 + abs(params["batch"] - 16) / 100
    return error, size


def deep(trial):
    """Half a million members, of which chance finds the middling ones."""
    for layer in range(12):
        trial.suggest_categorical(f"layer{layer}", ("skip", "narrow", "wide"))


def deep_costs(params):
    """Early layers cost more and late ones help more; a skip after a skip helps nothing."""
    cost, merit, before = 1.0, 0.0, "skip"
    for layer in range(12):
        kind = params[f"layer{layer}"]
        cost += {"skip": 0.0, "narrow": 1.0, "wide": 2.5}[kind] * (2 - layer / 12)
        merit += {"skip": 0.0, "narrow": 1.0, "wide": 1.6}[kind] * (1 + layer / 6)
        merit -= 0.5 * (kind == before == "skip")
        before = kind
    return 1 / (1 + 2 ** (merit / 4 - 1)), cost


def members_of(questions):
    """A space made of drawn questions; a choice may have questions of its own."""

    def ask(trial, asked, prefix):
        for index, (kind, *details) in enumerate(asked):
            name = f"{prefix}{index}"
            if kind == "int":
                low, width, log = details
                trial.suggest_int(name, low, low + width, log=log)
            elif kind == "float":
                low, width, step = details
                trial.suggest_float(name, low, low + width, step=step)
            else:
                choices, further = details
                choice = trial.suggest_categorical(name, choices)
                if choice == choices[-1]:
                    ask(trial, further, f"{name}.")

    return lambda trial: ask(trial, questions, "q")


_ints = st.tuples(st.just("int"), st.integers(1, 9), st.integers(0, 5), st.booleans())
_floats = st.tuples(
    st.just("float"), st.floats(-2, 2), st.floats(0, 2), st.sampled_from([None, 0.25])
)
_lists = st.sampled_from([("a", "b"), (1, 2, 4), (0.5, 1.5), (True, False), (None, "x", 3)])
_leaves = st.one_of(_ints, _floats, st.tuples(st.just("choice"), _lists, st.just(())))
_questions = st.recursive(
    st.lists(_leaves, min_size=1, max_size=3),
    lambda further: st.lists(
        st.one_of(_leaves, st.tuples(st.just("choice"), _lists, further)), min_size=1, max_size=3
    ),
    max_leaves=8,
)
spaces = _questions.map(members_of)
