"""What the runners of a fleet are told: from its record to the options of `edgeloop runner`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache

from edgeloop.operate.fleet.demand import DEVICE, LINUX
from edgeloop.operate.fleet.launcher import RunnerOrder
from edgeloop.operate.fleet.records import FleetRecord
from edgeloop.operate.fleet.spec import FleetSpec
from edgeloop.operate.fleet.start import settings_words
from edgeloop.platforms import converter_of

BOARD = "adb"


def is_board_name(device: str) -> bool:
    """`adb:SERIAL` is one board, `adb` all of a compute."""
    return device.partition(":")[0] == BOARD


def is_board(order: RunnerOrder | None) -> bool:
    return order is not None and is_board_name(order.device)


def machine_order(
    name: str, experiment: str, record: FleetRecord, boards: Sequence[str]
) -> RunnerOrder:
    """A runner that converts and evaluates on a machine, with the devices that every machine has.
    If the fleet has boards instead, it converts for those."""
    own = [device for device in record.spec.devices if not is_board_name(device)]
    devices = tuple(word for device in own for word in ("--device", device))
    tool: tuple[str, ...] = ()
    if boards and not own and "--toolchain" not in record.spec.options:
        tool = ("--toolchain", _converter_of(boards[0]))
    words = (*devices, *tool, *_common_words(record))
    return RunnerOrder(name, experiment, cpus=record.spec.cpus, words=words)


def is_as_told(
    order: RunnerOrder, template: RunnerOrder, record: FleetRecord, boards: Sequence[str]
) -> bool:
    """Whether a runner was told what it would be told now. While no board is known, it may convert
    for one that an earlier supervisor knew."""
    plain = replace(order, id=template.id, experiment=template.experiment)
    if plain == template:
        return True
    if boards or not may_have_boards(record) or order.words[:1] != ("--toolchain",):
        return False
    return replace(plain, words=order.words[2:]) == template


def may_have_boards(record: FleetRecord) -> bool:
    return _has_any_board(record) or any(map(is_board_name, record.spec.devices))


def serves_board(record: FleetRecord, board: str) -> bool:
    """All boards that a cluster announces, unless it is told which. A board that is plugged into
    this machine may be somebody's phone: it is served only if it is asked for."""
    return _has_any_board(record) or board in record.spec.devices


def _has_any_board(record: FleetRecord) -> bool:
    is_told_nothing = not record.spec.devices and record.kind != "local"
    return is_told_nothing or BOARD in record.spec.devices


@cache
def _converter_of(board: str) -> str:
    """Asked at every tick of a supervisor; it looks through all installed packages."""
    return converter_of(board)


def board_order(name: str, experiment: str, board: str, record: FleetRecord) -> RunnerOrder:
    """A runner for one board, on the machine that has it. It leaves conversion to others."""
    words = ("--no-quantize", *_common_words(record))
    resources = {board: 1.0}
    return RunnerOrder(name, experiment, device=board, cpus=0, resources=resources, words=words)


def _common_words(record: FleetRecord) -> tuple[str, ...]:
    spec = record.spec
    settings = () if record.kind == "local" else settings_words(record.settings)
    dataset = ("--dataset", spec.dataset) if spec.dataset else ()
    task = ("--task", spec.task) if spec.task else ()
    return (*settings, *dataset, *task, "--grace", f"{spec.grace:g}", *spec.options)


def machine_groups(spec: FleetSpec) -> Callable[[str], bool]:
    """Whether a runner on a machine can do the work of a group, as `demand` names them."""
    own = [device for device in spec.devices if not is_board_name(device)]
    kinds = {device.partition(":")[0] for device in own}

    def serves(group: str) -> bool:
        if group == LINUX:
            return True
        return bool(own) and (group == DEVICE or group.partition(":")[0] in kinds)

    return serves


def board_groups(spec: FleetSpec) -> Callable[[str], bool]:
    """Whether the work of a group may be for a board: all that is pinned to no other device."""
    by_machines = machine_groups(spec)
    return lambda group: group == DEVICE or not by_machines(group)
