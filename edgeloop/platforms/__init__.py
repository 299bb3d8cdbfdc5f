"""Vendors: toolchains that convert models, and the devices that run them. One folder per vendor.

May import `settings`, `tasks` and `graph`, and knows neither rows nor stores. Start reading in
`base.py`, the seam; `host.py` is the smallest platform, `registry.py` finds one by name.

To support another vendor, subclass `Platform` and register the class by an entry point of the
group `edgeloop.platforms`; `edgeloop.testing.contracts.platform` has the tests it must pass.
"""

from typing import TYPE_CHECKING, Any

from edgeloop._util.health import HealthCheck, package_check
from edgeloop.graph.info import GraphInfo, TensorInfo
from edgeloop.platforms.base import (
    DEFAULT_PRECISION,
    PROBE,
    Artefacts,
    AttributesLatency,
    Availability,
    CalibratedModel,
    CompilesQuantized,
    Converted,
    Device,
    DeviceCondition,
    DeviceLeftover,
    ErrorInterval,
    EstimatesIntervals,
    Estimator,
    GivesClasses,
    HasCondition,
    Kind,
    LatencyProfile,
    LayerCost,
    LayerCosts,
    LayerTime,
    ListedDevice,
    MeasuredModel,
    Measurement,
    MixesPrecision,
    Platform,
    SharedDevice,
    TakesTurns,
    Toolchain,
    Versioned,
    check_mixes,
    convert_as,
    device_type,
)
from edgeloop.platforms.precision import (
    MIXED,
    PLAN_FILE,
    Precision,
    PrecisionPlan,
    parse_precision,
)
from edgeloop.platforms.registry import (
    DEFAULT_PLATFORM,
    board_kinds,
    converted_by,
    converter_of,
    describe_devices,
    device_names,
    find_platform,
    health,
    is_board,
    is_converted,
    list_devices,
    named_devices,
    open_device,
    open_toolchain,
    platform_names,
    platform_of,
    platforms,
)

if TYPE_CHECKING:
    from edgeloop.platforms.batching import (
        as_input,
        calibration_batch,
        calibration_runs,
        check_batch,
        cut,
        image_batches,
        infer_in_order,
        model_inputs,
        random_batch,
        run_samples,
        sample_count,
        samples_as_files,
        samples_from_files,
    )

__all__ = [
    "DEFAULT_PLATFORM",
    "DEFAULT_PRECISION",
    "MIXED",
    "PLAN_FILE",
    "PROBE",
    "Artefacts",
    "AttributesLatency",
    "Availability",
    "CalibratedModel",
    "CompilesQuantized",
    "Converted",
    "Device",
    "DeviceCondition",
    "DeviceLeftover",
    "ErrorInterval",
    "EstimatesIntervals",
    "Estimator",
    "GivesClasses",
    "GraphInfo",
    "HasCondition",
    "HealthCheck",
    "Kind",
    "LatencyProfile",
    "LayerCost",
    "LayerCosts",
    "LayerTime",
    "ListedDevice",
    "MeasuredModel",
    "Measurement",
    "MixesPrecision",
    "Platform",
    "Precision",
    "PrecisionPlan",
    "SharedDevice",
    "TakesTurns",
    "TensorInfo",
    "Toolchain",
    "Versioned",
    "as_input",
    "board_kinds",
    "calibration_batch",
    "calibration_runs",
    "check_batch",
    "check_mixes",
    "convert_as",
    "converted_by",
    "converter_of",
    "cut",
    "describe_devices",
    "device_names",
    "device_type",
    "find_platform",
    "health",
    "image_batches",
    "infer_in_order",
    "is_board",
    "is_converted",
    "list_devices",
    "model_inputs",
    "named_devices",
    "open_device",
    "open_toolchain",
    "package_check",
    "parse_precision",
    "platform_names",
    "platform_of",
    "platforms",
    "random_batch",
    "run_samples",
    "sample_count",
    "samples_as_files",
    "samples_from_files",
]


_WITH_NUMPY = (
    "as_input",
    "calibration_batch",
    "board_kinds",
    "calibration_runs",
    "check_batch",
    "cut",
    "image_batches",
    "infer_in_order",
    "model_inputs",
    "random_batch",
    "run_samples",
    "sample_count",
    "samples_as_files",
    "samples_from_files",
)


def __getattr__(name: str) -> Any:
    """What needs NumPy is imported when an implementation asks for it."""
    if name in _WITH_NUMPY:
        from edgeloop.platforms import batching

        return getattr(batching, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
