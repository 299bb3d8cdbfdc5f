"""The API against its own description, with requests that nobody would think of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import schemathesis
from schemathesis import checks
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi import checks as conformance

from edgeloop.settings import Settings
from edgeloop.view.portal.app import create_app
from edgeloop.view.portal.state import PortalOptions
from edgeloop.workspace import Workspace
from tests.portal.farm import SHOWN, fill

pytestmark = pytest.mark.slow

TOKEN = "a-token-for-the-tests"
FEW = 4
BUDGETS = [FEW, pytest.param(40, marks=pytest.mark.soak)]
LIMIT_S = 120.0
CHECKS = (
    checks.not_a_server_error,
    conformance.status_code_conformance,
    conformance.content_type_conformance,
    conformance.response_schema_conformance,
)
WITH_PARAMETERS = ("/api/v1/models", "/api/v1/pareto", "/api/v1/usage")
_MODEL = "/api/v1/models/{name}"
KNOWN = {
    _MODEL: {"name": SHOWN},
    f"{_MODEL}/files": {"name": SHOWN},
    f"{_MODEL}/files/{{file}}": {"name": SHOWN, "file": "calm-heron.onnx"},
    f"{_MODEL}/examples/{{number}}/{{column}}.png": {
        **{"name": SHOWN, "number": 1, "column": "difference"}
    },
    f"{_MODEL}/reset": {"name": SHOWN},
    f"{_MODEL}/priority": {"name": SHOWN},
    f"{_MODEL}/delete": {"name": "bold-heron"},
    "/api/v1/searches/{name}": {"name": "faces"},
}
STREAMS = r"/events$"  # they never end, and have tests of their own


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[schemathesis.BaseSchema]:
    folder: Path = tmp_path_factory.mktemp("described")
    fill(folder, count=20)
    with Workspace(Settings.load(folder, {})) as workspace:
        app = create_app(workspace, PortalOptions("0.0.0.0", 8750, TOKEN, allow_changes=True))
        schema = schemathesis.openapi.from_asgi(
            "/api/openapi.json", app, headers={"Authorization": f"Bearer {TOKEN}"}
        )
        yield schema.exclude(path_regex=STREAMS)
        app.state.portal.close()


def tried(operation: Any, examples: int = FEW, **given: Any) -> Counter[int]:
    """Sends what the description allows (or, told so, what it forbids); counts the answers."""
    answers: Counter[int] = Counter()

    @hypothesis.seed(7)
    @hypothesis.settings(
        max_examples=examples,
        deadline=None,
        database=None,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(case=operation.as_strategy(**given))
    def conforms(case: schemathesis.Case) -> None:
        headers = {"Authorization": f"Bearer {TOKEN}"}
        answer = case.call_and_validate(headers=headers, checks=CHECKS, timeout=LIMIT_S)
        answers[answer.status_code] += 1

    conforms()
    return answers


def operations(api: schemathesis.BaseSchema) -> list[Any]:
    found = [result.ok() for result in api.get_all_operations()]
    assert len(found) >= 15
    return found


@pytest.mark.parametrize("examples", BUDGETS)
def test_every_answer_is_as_described(api: schemathesis.BaseSchema, examples: int):
    for operation in operations(api):
        assert tried(operation, examples)


@pytest.mark.parametrize("examples", BUDGETS)
def test_what_the_description_forbids_is_refused_and_breaks_nothing(
    api: schemathesis.BaseSchema, examples: int
):
    takes_something = [o for o in operations(api) if "{" in o.path or o.path in WITH_PARAMETERS]
    for operation in takes_something:
        answers = tried(operation, examples, generation_mode=GenerationMode.NEGATIVE)
        assert answers[400] + answers[414] + answers[422] > 0, operation.label


def test_what_is_there_is_answered_as_described(api: schemathesis.BaseSchema):
    known = [operation for operation in operations(api) if operation.path in KNOWN]
    assert len(known) == len(KNOWN)
    for operation in known:
        answers = tried(operation, path_parameters=KNOWN[operation.path], query={})
        assert answers[200] > 0, (operation.label, answers)
