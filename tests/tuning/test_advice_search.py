"""The search for rewrites that pay, on a compiler whose answers are written down here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from edgeloop.cli.tuning import _advise_lines
from edgeloop.errors import BadInput
from edgeloop.graph.rewrites.registry import OutputComparison, RewriteStep
from edgeloop.tuning import advice as advising
from edgeloop.tuning.advice import Advice, AdviceSearch
from edgeloop.tuning.lab import GraphEstimate, RewriteTrial, Steps, estimate_of

Costs = Callable[[Mapping[str, tuple[str, ...]]], GraphEstimate | None]
LAYERS = ("one", "two", "three")


class Room:
    """Each rewrite has three layers; `costs` is the compiler. Equal, but for names in `unequal`."""

    base = Path("base.onnx")

    def __init__(self, costs: Costs, unequal: Sequence[str] = ()) -> None:
        self._costs, self._unequal = costs, unequal
        self.failures: dict[str, str] = {}
        self.asked: list[Steps] = []

    def run(self, wanted: Sequence[Steps], done: Callable[[], None]) -> list[RewriteTrial]:
        trials = []
        for steps in wanted:
            self.asked.append(steps)
            layers = {step.name: step.layers or LAYERS for step in steps}
            estimate = self._costs(layers)
            if estimate is not None and len(layers) == len(steps):
                path = Path("+".join(layers))
                trials.append(RewriteTrial(steps, layers[steps[-1].name], path, estimate))
            done()
        return trials

    def compare(self, after: Path, samples: Any) -> OutputComparison:
        is_equal = not any(name in self._unequal for name in str(after).split("+"))
        return OutputComparison(is_equal, 0.0 if is_equal else 0.5)


def savings(**parts: float) -> Costs:
    """Rewrites by the part of the time that each saves; nothing else applies."""

    def costs(layers: Mapping[str, tuple[str, ...]]) -> GraphEstimate | None:
        left = 1.0
        for name in layers:
            if name not in plain:
                return None
            left *= 1 - plain[name]
        return GraphEstimate(left, 1000 * left)

    plain = {name.replace("_", "-"): part for name, part in parts.items()}
    return costs


def search(room: Any, *names: str):
    return AdviceSearch(room, names).run(GraphEstimate(1.0, 1000.0))


def test_what_pays_is_combined_the_best_first_and_each_has_its_own_gain():
    found = search(Room(savings(fold_scaling=0.2, merge_joined=0.5, pad_channels=0.005)))
    assert [one.name for one in found.rewrites] == ["merge-joined", "fold-scaling"]
    assert [round(one.gain_percent) for one in found.rewrites] == [50, 20]
    assert found.after.latency_ms == pytest.approx(0.4)
    assert found.steps == (RewriteStep("merge-joined"), RewriteStep("fold-scaling"))
    assert "pad-channels" in found.tried


def test_nothing_that_saves_less_than_a_percent_is_offered():
    found = search(Room(savings(fold_scaling=0.009, pad_channels=-0.3)))
    assert found.rewrites == () and found.steps == () and found.paths == (Room.base,)


def test_a_rewrite_that_changes_outputs_is_not_offered_and_the_next_one_is():
    room = Room(savings(fold_scaling=0.5, merge_joined=0.1), unequal=["fold-scaling"])
    found = search(room)
    assert [one.name for one in found.rewrites] == ["merge-joined"]
    assert "differ" in found.rejected["fold-scaling"]


def test_a_graph_with_more_steps_of_unknown_cost_is_no_gain():
    def costs(layers: Mapping[str, tuple[str, ...]]) -> GraphEstimate | None:
        is_known = "merge-joined" not in layers
        return GraphEstimate(0.9, 900.0) if is_known else GraphEstimate(0.1, 100.0, missing_ops=3)

    found = search(Room(costs), "merge-joined", "fold-scaling")
    assert [one.name for one in found.rewrites] == ["fold-scaling"]


def test_a_gain_of_the_calibration_alone_is_none():
    """The compiler's own number has to fall, too."""
    found = search(Room(lambda layers: GraphEstimate(0.5, 1000.0)), "fold-scaling")
    assert found.rewrites == ()


def test_a_rewrite_that_pays_for_some_layers_is_kept_for_those():
    def costs(layers: Mapping[str, tuple[str, ...]]) -> GraphEstimate | None:
        saved = {"one": 0.1, "two": -0.4, "three": 0.2}
        left = 1 - sum(saved[layer] for layer in layers.get("pad-channels", ()))
        return GraphEstimate(left, 1000 * left)

    found = search(Room(costs), "pad-channels")
    assert [one.layers for one in found.rewrites] == [("one", "three")]
    assert found.steps == (RewriteStep("pad-channels", ("one", "three")),)


def test_what_changes_the_result_is_shown_apart_and_applied_only_when_named():
    costs = savings(fold_scaling=0.5, end_in_classes=0.2)
    found = search(Room(costs))
    assert [one.name for one in found.others] == ["end-in-classes"]
    assert found.steps == (RewriteStep("fold-scaling"),)
    assert found.after.latency_ms == 0.5
    named = search(Room(costs), "fold-scaling", "end-in-classes")
    assert [step.name for step in named.steps] == ["fold-scaling", "end-in-classes"]
    assert named.after.latency_ms == pytest.approx(0.4)
    assert named.applies_others and not found.applies_others
    assert named.equal_paths == (Room.base, Path("fold-scaling")) == found.equal_paths


def test_what_was_named_is_shown_as_applied():
    def shown(*names: str) -> str:
        found = search(Room(savings(fold_scaling=0.5, end_in_classes=0.2)), *names)
        advice = Advice(
            *("htp", 1.0, found.after.latency_ms, found.rewrites, found.others, found.tried, {}),
            *(3, False, 0),
            applies_others=found.applies_others,
        )
        return "\n".join(_advise_lines("net", advice))

    alone = shown("end-in-classes")
    assert "nothing found" not in alone and "applied only" not in alone
    assert "total: 1 ms → 800 µs, 20.0 % less" in alone
    both = shown("fold-scaling", "end-in-classes")
    assert both.count("total:") == 1 and "total: 1 ms → 400 µs, 60.0 % less" in both
    assert "applied only with --only" in shown()


def test_quantized_accuracy_is_checked_before_outputs_change(monkeypatch, tmp_path):
    """Of the last model whose outputs can be compared, although others are applied behind it."""
    room: Any = Room(savings(fold_scaling=0.5, merge_joined=0.4, end_in_classes=0.2))
    room.begin = lambda path: (None, GraphEstimate(1.0, 1000.0))
    room.close, room.compiles, room.is_cut_short = (lambda: None), 0, False
    asked: list[Any] = []

    class Check:
        def first_loss(self, paths):
            asked.append([str(path) for path in paths])
            return (0, 3.0) if "fold-scaling" in asked[-1] else None

        def agreement(self, path):
            asked.append(str(path))

        def close(self):
            pass

    names = ("fold-scaling", "merge-joined", "end-in-classes")
    monkeypatch.setattr(advising, "TrialRoom", lambda *_, **__: room)
    monkeypatch.setattr(advising, "QuantizedCheck", lambda *_: Check())
    monkeypatch.setattr(advising, "_samples", lambda *_: ())
    monkeypatch.setattr(advising, "_arrays", lambda *_: {})
    options = advising.AdviceOptions(names, tmp_path, uses_cache=False)
    found = advising.advise_model(Path("net.onnx"), "htp:qcs8550", options)
    base = str(Room.base)
    assert asked[0] == [base, "fold-scaling", "fold-scaling+merge-joined"]
    assert asked[1:] == [[base, "merge-joined"], "merge-joined"]
    assert [one.name for one in found.others] == ["end-in-classes"] and found.applies_others
    assert "3.0 dB" in found.rejected["fold-scaling"]


def test_a_refused_rewrite_is_not_tried_and_the_reason_is_kept():
    room: Any = Room(savings(fold_scaling=0.5))
    found = AdviceSearch(room, refused={"fold-scaling": "it costs 3 dB"}).run(GraphEstimate(1.0))
    assert found.rewrites == () and found.rejected == {"fold-scaling": "it costs 3 dB"}
    assert not any(step.name == "fold-scaling" for steps in room.asked for step in steps)


def test_an_unknown_rewrite_gets_the_nearest_name():
    with pytest.raises(BadInput, match="fold-scaling"):
        search(Room(savings()), "fold-scalings")


@pytest.mark.parametrize(
    "change",
    [
        *({"latency_ms": value} for value in ("1.5", 0, -1, float("nan"), None, True, [])),
        *({"raw_us": value} for value in ("1", float("inf"), -1)),
        *({"missing_ops": value} for value in ("1", -1, None)),
        {"more": 1},
    ],
)
def test_a_damaged_record_counts_as_not_known(change: dict[str, Any]):
    known = GraphEstimate(1.5, 1400.0, 0, 1.2, 1.8, 0.9)
    assert estimate_of(vars(known) | {}) == known
    assert estimate_of(vars(known) | change) is None
    assert estimate_of([]) is None
