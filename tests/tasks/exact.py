"""The formulas once more, slow and plain, for the fast ones to be compared with."""

from __future__ import annotations

import math

import numpy as np


def confusion(truth: np.ndarray, answer: np.ndarray, classes: int) -> list[list[int]]:
    table = [[0] * classes for _ in range(classes)]
    for t, a in zip(truth.ravel().tolist(), answer.ravel().tolist(), strict=True):
        if t != 255:
            table[t][a] += 1
    return table


def iou_and_f1(table: list[list[int]]) -> tuple[list[float], list[float], list[int]]:
    classes = range(len(table))
    truth = [sum(table[c]) for c in classes]
    given = [sum(row[c] for row in table) for c in classes]
    right = [table[c][c] for c in classes]
    iou = [right[c] / max(1, truth[c] + given[c] - right[c]) for c in classes]
    f1 = [2 * right[c] / max(1, truth[c] + given[c]) for c in classes]
    return iou, f1, truth


def overall(values: list[float], truth: list[int], counted: range) -> float:
    pairs = [(1 / math.sqrt(truth[c]), values[c]) for c in counted if truth[c]]
    return sum(w * v for w, v in pairs) / sum(w for w, _ in pairs) if pairs else 0.0


def softmax(logits: np.ndarray) -> np.ndarray:
    """Over the first axis, in double precision."""
    power = np.exp(logits.astype(np.float64) - logits.max(axis=0))
    return power / power.sum(axis=0)


def average_precision(probability: np.ndarray, is_class: np.ndarray) -> float:
    """By sorting: one step for each different probability."""
    if not is_class.any():
        return 0.0
    order = np.argsort(-probability, kind="stable")
    found = np.cumsum(is_class[order])
    last = np.append(np.diff(probability[order]) != 0, True)  # ties stand or fall together
    recall = found[last] / found[-1]
    precision = found[last] / (np.flatnonzero(last) + 1)
    return float(np.sum(np.diff(recall, prepend=0.0) * precision))
