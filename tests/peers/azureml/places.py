"""Inputs and outputs: addresses in the cloud become folders on the node, and go back."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.peers.azureml.assets import Assets
from tests.peers.azureml.datastores import DEFAULT, Datastores
from tests.peers.azureml.runs import Order, Run
from tests.peers.azureml.scope import not_found
from tests.peers.azureml.storage import Storage, split_blob_url

_DATASTORE = re.compile(r"azureml://(?:.*/)?datastores/(?P<store>[^/]+)/(?:paths/)?(?P<path>.*)")


@dataclass
class Places:
    storage: Storage
    datastores: Datastores
    assets: Assets
    folder: Path
    _outputs: dict[str, Path] = field(default_factory=dict)

    def prepare(self, run: Run, order: Order) -> dict[str, str]:
        """Fetches the inputs and makes folders for the outputs; what bindings stand for."""
        values = {f"inputs.{k}": self._input(k, v) for k, v in order.inputs.items()}
        for name, output in order.outputs.items():
            if name == "default":
                continue
            where = (
                output.get("uri")
                or f"azureml://datastores/{DEFAULT}/paths/azureml/{run.name}/{name}/"
            )
            run.outputs[name] = where.replace("${{name}}", run.name)
            self._outputs[name] = target = self.folder / "outputs" / name
            is_file = output.get("jobOutputType") == "uri_file"
            (target.parent if is_file else target).mkdir(parents=True, exist_ok=True)
            if not is_file and _is_mounted(output):
                account, container, prefix = self.locate(run.outputs[name])
                self.storage.fetch(container, prefix.rstrip("/"), target, account)
            values[f"outputs.{name}"] = str(target)
        return values

    def store_outputs(self, run: Run) -> None:
        for name, path in self._outputs.items():
            account, container, prefix = self.locate(run.outputs[name])
            if path.is_dir():
                self.storage.store(path, container, prefix, account)
            elif path.is_file():
                client = self.storage.container(container, account)
                client.upload_blob(prefix.rstrip("/"), path.read_bytes(), overwrite=True)

    def locate(self, uri: str) -> tuple[str, str, str]:
        """Account, container and path behind an address."""
        if found := _DATASTORE.fullmatch(uri):
            return *self.datastores.place_of(found["store"]), found["path"]
        if uri.startswith("https://"):
            return split_blob_url(uri)
        if "/data/" in uri or uri.startswith("azureml:"):
            return self.locate(self.assets.find(uri, "data")["properties"]["dataUri"])
        raise not_found("data", uri)

    def _input(self, name: str, given: dict[str, Any]) -> str:
        if given["jobInputType"] == "literal":
            return str(given["value"])
        uri = str(given["uri"])
        if given.get("mode") == "Direct":
            return uri
        account, container, path = self.locate(uri)
        target = self.folder / "inputs" / name
        target.mkdir(parents=True, exist_ok=True)
        if not self.storage.fetch(container, path.rstrip("/"), target, account):
            raise not_found("data", uri)
        if _is_mounted(given):
            for file in target.rglob("*"):
                file.chmod(0o555 if file.is_dir() else 0o444)
        if given["jobInputType"] == "uri_file":
            return str(target / Path(path).name)
        return str(target)


def _is_mounted(place: dict[str, Any]) -> bool:
    """Which is what the service does where nothing else is said."""
    return str(place.get("mode") or "mount").lower().endswith("mount")
