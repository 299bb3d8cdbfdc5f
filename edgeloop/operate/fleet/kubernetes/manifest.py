"""`edgeloop fleet manifest`: from the settings of a project to YAML for `kubectl apply`."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from edgeloop._util.schema import validated, with_overrides
from edgeloop._util.yaml import Origin, read_document
from edgeloop.errors import BadSetting
from edgeloop.operate.fleet.control import carried_settings
from edgeloop.operate.fleet.kubernetes.objects import Release, fleet_objects
from edgeloop.operate.fleet.kubernetes.rules import check_objects
from edgeloop.operate.fleet.kubernetes.values import GRACE_MARGIN_S, KubernetesValues, Plain
from edgeloop.operate.fleet.spec import FleetSpec, read_spec
from edgeloop.operate.fleet.start import is_folder
from edgeloop.settings import Settings

_WHERE = "fleet.kubernetes"
_EXAMPLE = "runner.maxReplicas=50"


def fleet_manifest(
    settings: Settings,
    words: Sequence[str] = (),
    file: Path | None = None,
    *,
    name: str = "edgeloop",
    namespace: str = "edgeloop",
) -> list[Plain]:
    """The objects of a fleet, checked.

    Args:
        settings: The project; its `fleet` section, and what it says about Kubernetes there.
        words: `key=value` overrides of single values.
        file: A file of values for the Helm chart. It wins over the settings.
        name: The name that all objects begin with, as a release of the chart has one.
        namespace: Where the objects are to be.

    Raises:
        BadSetting: A value is wrong, or no cluster would take what comes of it.
    """
    values = fleet_values(settings, words, file)
    if values.store.create or values.portal.token:
        key = "store.create" if values.store.create else "portal.token"
        reason = f"{key} would put a secret into the manifest: create the Secret with kubectl"
        raise BadSetting(where=_WHERE, reason=f"{reason}, and name it")
    objects = fleet_objects(Release(values, name, namespace))
    check_objects(objects)
    return objects


def fleet_values(
    settings: Settings, words: Sequence[str] = (), file: Path | None = None
) -> KubernetesValues:
    """What `fleet` says about any fleet, then `fleet.kubernetes`, then the file, then the words."""
    spec = read_spec(settings.fleet)
    origin = Origin(_WHERE, BadSetting)
    document = _merged(_of_any_fleet(spec, settings), spec.kubernetes)
    if file is not None:
        written, origin = read_document(file, BadSetting)
        if not isinstance(written, Mapping | None):
            raise origin.at((), "must hold 'key: value' lines")
        document = _merged(document, written or {})
    document, origin = with_overrides(KubernetesValues, document, words, origin, example=_EXAMPLE)
    runner = document.get("runner")
    # Jobs end when nothing is left, so only a Deployment can keep the least of any other fleet.
    if isinstance(runner, dict) and runner.get("mode") == "deployment":
        runner.setdefault("minReplicas", spec.runners.least)
    return validated(KubernetesValues, document, origin)


def manifest_text(objects: Sequence[Plain]) -> str:
    """As YAML documents, the same text for the same objects."""
    import yaml

    plain = json.loads(json.dumps(objects))  # no anchors for parts that two objects share
    return yaml.safe_dump_all(
        plain, sort_keys=False, explicit_start=True, allow_unicode=True, width=120
    )


def _of_any_fleet(spec: FleetSpec, settings: Settings) -> Plain:
    """Keys of `fleet` that have the same meaning on every engine."""
    given = spec.model_fields_set
    runner: Plain = {}
    if "runners" in given:
        runner["maxReplicas"] = spec.runners.most
    if "cpus" in given:
        runner |= {"cpus": spec.cpus, "resources": {"requests": {"cpu": str(spec.cpus)}}}
    if "grace" in given:
        runner["graceSeconds"] = math.ceil(spec.grace) + GRACE_MARGIN_S
    # Boards are outside of the cluster.
    devices = [device for device in spec.devices if not device.startswith("adb")]
    if len(devices) > 1:
        reason = "a runner on Kubernetes has one device: use an experiment for each"
        raise BadSetting(where="fleet.devices", reason=reason)
    if devices:
        runner["device"] = devices[0]
    words = [*(["--task", spec.task] if spec.task else []), *spec.options]
    if words:
        runner["args"] = words
    if is_folder(spec.dataset) and not spec.kubernetes.get("dataset"):
        reason = f"pods have no folder {spec.dataset}: set {_WHERE}.dataset to a claim"
        raise BadSetting(where="fleet.dataset", reason=reason)
    pull = {} if is_folder(spec.dataset) or not spec.dataset else {"pull": spec.dataset}
    return {
        "settings": carried_settings(settings),
        "runner": runner,
        "dataset": pull,
        "experiments": [
            {"name": name, **({"maxReplicas": share.quota} if share.quota else {})}
            for name, share in spec.experiments.items()
        ]
        or [{"name": settings.experiment}],
    }


def _merged(below: Plain, above: Mapping[str, object]) -> Plain:
    """As Helm merges values: mappings key by key, everything else as a whole."""
    found = dict(below)
    for key, value in above.items():
        under = found.get(str(key))
        is_deep = isinstance(under, dict) and isinstance(value, Mapping)
        found[str(key)] = _merged(under, value) if is_deep else value  # type: ignore[arg-type]
    return found
