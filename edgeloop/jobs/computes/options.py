"""The options of a compute: what stands under its name in `edgeloop.yaml`, checked.

A compute class has its model as the attribute `Options`; its instances get a checked one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from edgeloop._util.schema import Section, key, validated
from edgeloop._util.values import Text
from edgeloop._util.yaml import Origin
from edgeloop.errors import BadSetting


class ComputeOptions(Section):
    """What every compute has."""

    kind: Text = key("", "The kind of compute; by default the compute's name.")


Checked = TypeVar("Checked", bound=ComputeOptions)


def read_options(model: type[Checked], name: str, config: Mapping[str, object]) -> Checked:
    """Raises BadSetting, which names the compute and the key."""
    return validated(model, config, Origin(f"computes.{name}", BadSetting))
