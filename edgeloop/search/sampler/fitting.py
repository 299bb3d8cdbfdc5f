"""When kernels are fitted, and to which results, so that most proposals need no fit at all."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from edgeloop.search.base import Observation
from edgeloop.search.sampler.surrogate import Kernel
from edgeloop.search.sampler.trial import key_of

_FITTED_TO = 120  # results that a kernel is fitted to; more cost time and change little
_GROWTH = 1.15  # a kernel is fitted again when there are so many times more results


def fitted_results(results: Sequence[Observation], start: int) -> Sequence[Observation]:
    """The first so many results, or a sample of them if they are very many."""
    count = max(2, start)
    while (following := int(count * _GROWTH) + 1) <= len(results):
        count = following
    used = results[:count]
    if len(used) <= _FITTED_TO:
        return used
    rng = np.random.default_rng(len(used))
    chosen = rng.choice(len(used), _FITTED_TO, replace=False)
    return [used[index] for index in sorted(chosen)]


class KernelCache:
    """Kernels are fitted again when what they were fitted to is not the same any more."""

    def __init__(self) -> None:
        self._kept: dict[str, tuple[object, Sequence[Kernel]]] = {}

    def get(
        self,
        what: str,
        used: Sequence[Observation],
        conditions: object,
        fit: Callable[[], Sequence[Kernel]],
    ) -> Sequence[Kernel]:
        identity = (
            conditions,
            [
                (key_of(result.params), result.values, result.feasible, result.is_partial)
                for result in used
            ],
        )
        known = self._kept.get(what)
        if known is None or known[0] != identity:
            known = self._kept[what] = identity, fit()
        return known[1]
