"""The sizes of machines that this region has, and the quota of each family."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tests.peers.azureml.routing import ServiceError
from tests.peers.azureml.scope import LOCATION


@dataclass(frozen=True)
class Size:
    name: str
    family: str
    cores: int
    gpus: int
    memory_gb: int

    def row(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "family": self.family,
            "vCPUs": self.cores,
            "gpus": self.gpus,
            "memoryGB": self.memory_gb,
            "osVhdSizeMB": 1047552,
            "maxResourceVolumeMB": 28672,
            "lowPriorityCapable": True,
            "premiumIO": True,
            "supportedComputeTypes": ["AmlCompute", "ComputeInstance"],
        }


SIZES = {
    size.name: size
    for size in (
        Size("STANDARD_DS3_V2", "standardDSv2Family", 4, 0, 14),
        Size("STANDARD_D4S_V3", "standardDSv3Family", 4, 0, 16),
        Size("STANDARD_NC4AS_T4_V3", "standardNCASv3_T4Family", 4, 1, 28),
        Size("STANDARD_NC6S_V3", "standardNCSv3Family", 6, 1, 112),
        Size("STANDARD_NC24ADS_A100_V4", "standardNCADSA100v4Family", 24, 1, 220),
        Size("STANDARD_ND96ASR_V4", "standardNDASv4Family", 96, 8, 900),
    )
}
FAMILIES = sorted({size.family for size in SIZES.values()})


def size_of(name: str) -> Size:
    found = SIZES.get(name.upper())
    if found is None:
        known = ", ".join(sorted(SIZES))
        what = f"The specified Azure ML Compute size {name} is not supported in region {LOCATION}. "
        raise ServiceError(400, "BadArgument", f"{what}Supported sizes: {known}.")
    return found
