"""The public API: few names, loaded when used, documented to the last parameter, with examples."""

from __future__ import annotations

import doctest
import importlib
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import edgeloop
from tests.nets import save_tiny

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/reference/api.md"
NAMES = [name for name in edgeloop.__all__ if name != "__version__"]
# The docstring of an error is its message.
CLASSES = [getattr(edgeloop, name) for name in NAMES if not name.endswith("Error")]


def public_functions() -> list[tuple[str, object]]:
    """The constructors and methods of the public classes, but those that Python itself calls."""
    found: list[tuple[str, object]] = []
    for kind in CLASSES:
        for name, member in vars(kind).items():
            function = getattr(member, "__func__", member)
            if inspect.isfunction(function) and not name.startswith("_"):
                found.append((f"{kind.__name__}.{name}", function))
    return found


FUNCTIONS = public_functions()


def documented(text: str, section: str) -> set[str]:
    """The names that a section of a docstring in Google's style explains."""
    body = re.search(rf"^{section}:\n((?:[ ]{{4,}}.*\n?|\n)+)", text, re.MULTILINE)
    return set(re.findall(r"^ {4}\*{0,2}(\w+): \S", body[1], re.MULTILINE)) if body else set()


def test_there_are_about_ten_names():
    assert 8 <= len(NAMES) <= 12
    assert sorted(edgeloop.__all__) == sorted(dir(edgeloop))


def test_a_name_that_does_not_exist_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'Workspaces'"):
        _ = edgeloop.Workspaces


def test_importing_the_package_loads_none_of_it():
    code = "import edgeloop, sys; print([n for n in sys.modules if n.startswith('edgeloop.')])"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "['edgeloop._version']"


@pytest.mark.parametrize("name", NAMES)
def test_every_name_is_on_the_page(name: str):
    assert f"::: edgeloop.{name}\n" in PAGE.read_text()


@pytest.mark.parametrize(("name", "function"), FUNCTIONS, ids=[name for name, _ in FUNCTIONS])
def test_every_parameter_and_result_is_documented(name: str, function: object):
    text = inspect.getdoc(function) or ""
    assert text, f"{name} has no docstring"
    signature = inspect.signature(function)
    parameters = {word for word in signature.parameters if word not in ("self", "cls")}
    assert parameters == documented(text, "Args"), name
    if signature.return_annotation not in (None, "None"):
        assert re.search(r"^(Returns|Yields):$", text, re.MULTILINE), f"{name}: returns what?"


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_every_constructor_parameter_or_field_is_documented(kind: type):
    text = inspect.getdoc(kind) or ""
    parameters = set(inspect.signature(kind).parameters) - {"fields"}
    assert parameters <= documented(text, "Args") | documented(text, "Attributes")


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind",
    [pytest.param(kind, marks=[pytest.mark.slow] * (kind is edgeloop.Jobs)) for kind in CLASSES],
    ids=lambda kind: kind.__name__,
)
def test_the_examples_run(kind: type, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Each docstring in an empty project with one model file, on the embedded store."""
    for variable in ("EDGELOOP_STORE", "EDGELOOP_EXPERIMENT", "MODEL_STORAGE_CONNECTION_STRING"):
        monkeypatch.delenv(variable, raising=False)
    module = importlib.import_module(kind.__module__)
    tests = doctest.DocTestFinder(recurse=True).find(kind, module=module)
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    examples = [test for test in tests if test.examples]
    assert examples, f"{kind.__name__} shows no example"
    for number, test in enumerate(examples):
        project = tmp_path / str(number)
        save_tiny(project / "net.onnx")
        monkeypatch.chdir(project)
        output: list[str] = []
        runner.run(test, out=output.append)
        assert not output, "".join(output)


@pytest.mark.slow
@pytest.mark.parametrize("command", [("echo", "a b"), ["echo", "a b"], "echo 'a b'"])
def test_a_specification_needs_a_command_and_nothing_else(
    command: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sub").mkdir()
    jobs = edgeloop.Jobs.open()
    whole = edgeloop.JobSpec(command=command)  # type: ignore[arg-type]
    below = edgeloop.JobSpec(command=command, code="sub")  # type: ignore[arg-type]
    runs = jobs.wait([*jobs.submit(whole), *jobs.submit(below)], timeout_s=120)
    assert [run.state for run in runs] == ["completed"] * 2
    assert {run.record.command for run in runs} == {("echo", "a b")}
    assert [jobs.spec(run).code for run in runs] == [tmp_path, tmp_path / "sub"]
    with pytest.raises(edgeloop.EdgeloopError, match="a quote that is never closed"):
        edgeloop.JobSpec(command="echo 'a")  # type: ignore[arg-type]
    with pytest.raises(edgeloop.EdgeloopError, match="nothing to run"):
        jobs.submit(edgeloop.JobSpec())


@pytest.mark.slow
def test_a_job_is_submitted_as_a_script_a_file_or_a_specification(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hello.py").write_text("import sys; print(sys.argv)")
    (tmp_path / "hello.yaml").write_text("script: hello.py\nargs: [old]\ntags: [file]\n")
    jobs = edgeloop.Jobs.open()
    [script] = jobs.submit("hello.py", ["new"], {"tags": ["script"], "name": "one"})
    [file] = jobs.submit(Path("hello.yaml"), options={"name": "two"})
    [changed] = jobs.submit("hello.yaml", ["new"], {"name": "three"})
    [again] = jobs.submit(jobs.spec(script), ["newer"], {"name": "four"})
    runs = jobs.wait([script, file, changed, again], timeout_s=120)
    assert [run.state for run in runs] == ["completed"] * 4
    assert [run.record.command[-1] for run in runs] == ["new", "old", "new", "newer"]
    assert [run.record.tags for run in runs] == [("script",), ("file",), ("file",), ("script",)]
    assert [run.name for run in runs] == ["one", "two", "three", "four"]
