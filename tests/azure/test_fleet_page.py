"""The page of a fleet on Azure: its template, its values and its manifest fit together."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from edgeloop.cli.app import app
from tests.fleet.kubernetes.cluster import schema_problems

pytestmark = pytest.mark.server  # KEDA's validators of `make setup`

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/how-to/azure-fleet.md").read_text()
TEMPLATE = json.loads((ROOT / "deploy/azure/main.json").read_text())
COMMANDS = [line[2:] for line in PAGE.splitlines() if line.startswith("$ ")]
OUTPUTS = {
    "STORE": "azure:https://account.blob.core.windows.net/",
    "REGISTRY": "fleet.azurecr.io",
    "CLUSTER": "edgeloop-kubernetes",
    "CLIENT": "11111111-2222-3333-4444-555555555555",
}


def filled(command: str) -> list[str]:
    for name, value in OUTPUTS.items():
        command = re.sub(rf"\$\{{{name}[^}}]*\}}|\${name}\b", value, command)
    assert "$" not in command
    return shlex.split(command)


def test_the_page_names_parameters_and_outputs_of_the_template():
    table = re.findall(r"^\| `(\w+)`(?:, `(\w+)`)? \|", PAGE, re.MULTILINE)
    named = {name for names in table for name in names if name}
    assert named and named <= set(TEMPLATE["parameters"])
    assert set(re.findall(r"--parameters (\w+)=", PAGE)) <= set(TEMPLATE["parameters"])
    assert set(re.findall(r"\$\(output (\w+)\)", PAGE)) == set(TEMPLATE["outputs"])
    files = re.findall(r"(?<= )deploy/[\w./-]+", "\n".join(COMMANDS))
    assert len(files) == 3
    assert all((ROOT / file).is_file() for file in files)


def test_the_manifest_of_the_page_is_accepted_and_runs_on_the_spot_machines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    [values] = re.findall(r"```yaml\n# azure\.yaml\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "azure.yaml").write_text(values)
    [command] = [c for c in COMMANDS if c.startswith("edgeloop fleet manifest")]
    words = filled(command.partition(" > ")[0])
    done = CliRunner().invoke(app, words[1:])
    assert done.exit_code == 0, done.output
    objects = list(yaml.safe_load_all(done.output))
    assert schema_problems([objects]) == [[]]
    [runners] = [item for item in objects if item["kind"] == "ScaledJob"]
    pod = runners["spec"]["jobTargetRef"]["template"]
    [pool] = [
        pool
        for item in TEMPLATE["resources"]
        for pool in item.get("properties", {}).get("agentPoolProfiles", ())
        if pool["mode"] == "User"
    ]
    assert pod["spec"]["nodeSelector"] == pool["nodeLabels"]
    [toleration] = pod["spec"]["tolerations"]
    taint = f"{toleration['key']}={toleration['value']}:{toleration['effect']}"
    assert taint in pool["nodeTaints"]
    [policy] = [
        item
        for item in objects
        if item["kind"] == "NetworkPolicy" and "portal" in item["metadata"]["name"]
    ]
    callers = json.dumps(policy["spec"]["ingress"])
    assert '"kubernetes.io/metadata.name": "kube-system"' in callers  # KEDA of the add-on
    [account] = [item for item in objects if item["kind"] == "ServiceAccount"]
    parameters = TEMPLATE["parameters"]
    place = (account["metadata"]["namespace"], account["metadata"]["name"])
    assert place == tuple(parameters[p]["defaultValue"] for p in ("namespace", "serviceAccount"))
    client = account["metadata"]["annotations"]["azure.workload.identity/client-id"]
    assert client == OUTPUTS["CLIENT"]
    assert pod["metadata"]["labels"]["azure.workload.identity/use"] == "true"
