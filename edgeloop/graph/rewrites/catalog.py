"""The exact rewrites by name: what each does, for people, without the code that does it."""

from __future__ import annotations

from dataclasses import dataclass

from edgeloop._util.values import suggestion
from edgeloop.errors import BadInput


@dataclass(frozen=True)
class ExactRewrite:
    """`text` says what becomes what. One that is not `is_equal` changes what the model returns, and
    is never applied unless it is asked for by name."""

    name: str
    text: str
    is_equal: bool = True


@dataclass(frozen=True)
class RewriteStep:
    """A rewrite of some layers, or of all that it can be applied to."""

    name: str
    layers: tuple[str, ...] | None = None


@dataclass(frozen=True)
class OutputComparison:
    """`difference` is the largest one of any output, as a part of that output's spread; for classes
    it is the share of those that differ. `problem` says why a model could not be compared."""

    is_equal: bool
    difference: float
    problem: str = ""


EXACT_REWRITES: tuple[ExactRewrite, ...] = (
    ExactRewrite("fold-scaling", "normalization in front of a Conv → its weights"),
    ExactRewrite(
        "fold-scaling-border",
        "normalization in front of a padded Conv → its weights, and a constant map",
    ),
    ExactRewrite("normalize-by-conv", "normalization in front of a Conv → 1×1 Conv"),
    ExactRewrite("fold-scaling-behind", "factors and offsets behind a Conv → its weights"),
    ExactRewrite("plain-operands", "Sub and Div by constants → Add and Mul"),
    ExactRewrite(
        "stride-over-blocks", "space-to-depth in front of a Conv → Conv with larger strides"
    ),
    ExactRewrite("reorder-kernel", "channel shuffle in front of a Conv → its kernel in that order"),
    ExactRewrite("shuffle-by-conv", "channel shuffle → 1×1 Conv of ones and zeros"),
    ExactRewrite("select-by-conv", "channels picked in another order → 1×1 Conv of ones and zeros"),
    ExactRewrite("conv-before-resize", "1×1 Conv behind a Resize → in front of it"),
    ExactRewrite("parts-before-resize", "Resize, Concat, 1×1 Conv → 1×1 Convs, Resize, Add"),
    ExactRewrite("pool-before-conv", "average pooling behind a 1×1 Conv → in front of it"),
    ExactRewrite("hard-swish", "HardSwish in pieces → HardSwish"),
    ExactRewrite("merge-joined", "parallel Convs that are joined → one Conv"),
    ExactRewrite("merge-added", "Convs that are added → one Conv"),
    ExactRewrite("merge-consecutive", "two Convs with nothing between them → one Conv"),
    ExactRewrite("pad-channels", "channels → a multiple of 32, filled with zeros"),
    ExactRewrite(
        "end-in-classes", "scores as the result → the class with the largest score", is_equal=False
    ),
)


def find_rewrite(name: str) -> ExactRewrite:
    """By its name; raises BadInput with the nearest one."""
    for rewrite in EXACT_REWRITES:
        if rewrite.name == name:
            return rewrite
    near = suggestion(name, [one.name for one in EXACT_REWRITES], "the rewrites are")
    raise BadInput(reason=f"no such rewrite {name!r}; {near}")
