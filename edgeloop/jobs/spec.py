"""What a job is before it is on its way: a file or a command line, checked to the last key.

A specification is a mapping of texts, lists and mappings, the same whether it was written in YAML,
typed on the command line or read back from a record. So there is one place that checks it, and a
job that is submitted again goes through the same checks. Texts stay as they were typed: a learning
rate of `1e-3` reaches the script as `1e-3`. Nothing is moved, stored or started here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from edgeloop.errors import BadJob
from edgeloop.jobs import fields
from edgeloop.jobs.computes.base import Resources
from edgeloop.jobs.fields import Wrong
from edgeloop.jobs.overrides import apply, unknown_key
from edgeloop.jobs.ticket import Environment
from edgeloop.paths import find_project
from edgeloop.settings import filled_in

DEFAULT_PRIORITY = 100
DEFAULT_GRACE_S = 30.0
_PLACEHOLDER = re.compile(r"\{([A-Za-z_][A-Za-z0-9_.-]*)\}")
_WRAPPER_WORDS = frozenset({"outputs", "data", "job", "attempt"})  # filled where the job runs


@dataclass(frozen=True)
class JobSpec:
    """A checked specification. An empty name, compute or experiment means: choose the usual one.

    `variables` are as written, `${NAME}` and all, so that a record of this holds no secret.
    """

    code: Path
    stem: str = "job"  # what a name is made of where none is given
    name: str = ""
    script: str = ""  # inside the code; the command starts it
    command: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    data: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    environment: Environment = field(default_factory=Environment)
    compute: str = ""
    resources: Resources = field(default_factory=Resources)
    tags: tuple[str, ...] = ()
    experiment: str = ""
    timeout_s: float | None = None
    retries: int = 0
    priority: int = DEFAULT_PRIORITY
    grace_s: float = DEFAULT_GRACE_S
    params: Mapping[str, str] = field(default_factory=dict)
    sweep: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)

    def full_command(self) -> tuple[str, ...]:
        """Params in the places that name them, the others as options at the end.

        What the wrapper fills in (`{outputs}`, `{input:faces}`) and all other braces stay.
        """
        used: set[str] = set()

        def fill(match: re.Match[str]) -> str:
            name = match[1]
            if name not in self.params or name in _WRAPPER_WORDS:
                return match[0]
            used.add(name)
            return self.params[name]

        filled = [_PLACEHOLDER.sub(fill, word) for word in (*self.command, *self.args)]
        rest = [(f"--{name}", value) for name, value in self.params.items() if name not in used]
        return (*filled, *(word for pair in rest for word in pair))

    def filled_variables(self) -> dict[str, str]:
        """With the values of the environment, which may be secret: for the ticket alone."""
        where = f"variables of {self.name or self.stem}"
        return {name: str(filled_in(text, where)) for name, text in self.variables.items()}

    def document(self) -> dict[str, object]:
        """As it would be written; `spec_of` reads it back to the same specification."""
        program = {"script": self.script} if self.script else {"command": list(self.command)}
        plain: dict[str, object] = {
            **{"name": self.name, "code": str(self.code)},
            **program,
            **{"args": list(self.args), "data": list(self.data), "writes": list(self.writes)},
            **{"environment": _environment_text(self.environment), "compute": self.compute},
            **{"resources": _resources_text(self.resources), "tags": list(self.tags)},
            **{"experiment": self.experiment, "retries": str(self.retries)},
            **{"timeout": _seconds(self.timeout_s), "grace": _seconds(self.grace_s)},
            **{"priority": str(self.priority), "params": dict(self.params)},
            **{"sweep": {name: list(values) for name, values in self.sweep.items()}},
            **{"variables": dict(self.variables)},
        }
        return {key: value for key, value in plain.items() if value not in ("", [], {})}


def read_spec(
    path: Path, overrides: Sequence[str] = (), options: Mapping[str, object] | None = None
) -> JobSpec:
    """A specification in YAML, with `key=value` changes. Paths in it start from its own folder.

    `options` has keys of the file as well, and wins: mappings are merged, all else is replaced. Its
    `code` is what somebody typed, so that one starts from where they stand.
    """
    options = dict(options or {})
    if "code" in options:
        options["code"] = str(Path(str(options["code"])).absolute())
    written = _read_yaml(path)
    document = {
        key: value if key == "variables" else filled_in(value, path.name)
        for key, value in written.items()
    }
    document = _merged(apply(document, overrides, path.name), options)
    return spec_of(document, path.absolute().parent, path.name, stem=path.stem)


def spec_of_script(
    script: str,
    args: Sequence[str] = (),
    options: Mapping[str, object] | None = None,
    here: Path | None = None,
) -> JobSpec:
    """A script as one types it, from where one stands; the code is the project around it.

    `options` has the keys of a file: `{"data": ["faces"], "timeout": "2h"}`.
    """
    here = here or Path.cwd()
    options = dict(options or {})
    code = (here / str(options.pop("code", "") or find_project(here))).resolve()
    found = (here / script).absolute()
    if not found.is_file():
        raise BadJob(where=script, reason="there is no such file")
    found = found.parent.resolve() / found.name
    if not found.is_relative_to(code):
        reason = f"it is outside the code folder {code}: copy it there, or choose with --code"
        raise BadJob(where=script, reason=reason)
    path = found.relative_to(code).as_posix()
    document = {**options, "script": path, "args": list(args), "code": str(code)}
    return spec_of(document, code, script, stem=found.stem)


def changed(
    spec: JobSpec, overrides: Sequence[str] = (), args: Sequence[str] | None = None
) -> JobSpec:
    """The same job with other keys, params or arguments, checked again."""
    document = apply(spec.document(), overrides, spec.name or spec.stem)
    if args is not None:
        document["args"] = list(args)
    return spec_of(document, spec.code, spec.name or spec.stem, spec.stem)


def spec_of(document: Mapping[str, object], folder: Path, where: str, stem: str = "job") -> JobSpec:
    """Check everything that can be checked without a network; BadJob says what and where."""
    given = _checked_keys(document, where)
    code = (folder / str(given.pop("code", "."))).expanduser().resolve()
    if not code.is_dir():
        raise BadJob(where=where, reason=f"the code folder {code} is not there")
    values = {key: _value(key, raw, code, where) for key, raw in given.items()}
    values |= _program(values, where)
    return JobSpec(code=code, stem=fields.plain_stem(stem), **values)  # type: ignore[arg-type]


def _checked_keys(document: Mapping[str, object], where: str) -> dict[str, object]:
    """Known keys that say something."""
    found: dict[str, object] = {}
    for key, value in document.items():
        if key not in fields.KEYS:
            raise unknown_key(str(key), fields.KEYS, where)
        if value is not None and value not in ("", "null", "~"):
            found[key] = value
    filled_in(found.get("variables"), where)  # whether they are set is better known now
    return found


def _value(key: str, raw: object, code: Path, where: str) -> object:
    try:
        return fields.KEYS[key](raw, code)
    except Wrong as wrong:
        name = f"{key}.{wrong.below}" if wrong.below else key
        raise BadJob(where=where, reason=f"{name} {wrong}") from None


def _program(values: dict[str, object], where: str) -> dict[str, object]:
    """One of script and command; the keys that are named otherwise than their values."""
    renamed = {"timeout": "timeout_s", "grace": "grace_s"}
    found = {renamed[key]: values.pop(key) for key in renamed if key in values}
    if ("script" in values) == ("command" in values):
        both = "both 'script' and 'command' are there" if "script" in values else "nothing to run"
        raise BadJob(where=where, reason=f"{both}: give one, as 'script: train.py'")
    script = values.get("script")
    if isinstance(script, tuple):
        found |= {"script": script[0], "command": script[1]}
    return found


def _read_yaml(path: Path) -> dict[str, object]:
    import yaml

    try:
        text = path.read_text(encoding="utf-8")
        # The loader that makes nothing but texts, lists and mappings.
        content = yaml.load(text, Loader=yaml.BaseLoader)  # noqa: S506
    except yaml.YAMLError as error:  # its text quotes the line, which may hold a password
        mark = getattr(error, "problem_mark", None)
        line = f" (line {mark.line + 1})" if mark is not None else ""
        raise BadJob(where=path.name, reason=f"cannot be read as YAML{line}") from None
    except FileNotFoundError:
        raise BadJob(where=str(path), reason="there is no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise BadJob(where=str(path), reason=f"cannot be read: {error}") from None
    if not isinstance(content, dict):
        raise BadJob(where=path.name, reason="must hold 'key: value' lines, as 'script: train.py'")
    _refuse_twice([str(key.value) for key, _ in yaml.compose(text, yaml.BaseLoader).value], path)
    return content


def _refuse_twice(keys: Sequence[str], path: Path) -> None:
    """YAML would take the last one without a word."""
    for number, key in enumerate(keys):
        if key in keys[:number]:
            raise BadJob(where=path.name, reason=f"the key {key!r} is there twice")


def _merged(document: Mapping[str, object], options: Mapping[str, object]) -> dict[str, object]:
    merged = dict(document)
    for key, value in options.items():
        before = merged.get(key)
        both = isinstance(before, Mapping) and isinstance(value, Mapping)
        is_one_choice = key == "environment"
        merged[key] = {**before, **value} if both and not is_one_choice else value  # type: ignore[dict-item]
    return merged


def _seconds(value: float | None) -> str:
    return "" if value is None else f"{value:.9f}".rstrip("0").rstrip(".") + "s"


def _environment_text(environment: Environment) -> object:
    return "" if environment.kind == "here" else {environment.kind: environment.file}


def _resources_text(resources: Resources) -> dict[str, object]:
    return {
        "cpus": repr(resources.cpus),
        "gpus": repr(resources.gpus),
        **({"memory": f"{resources.memory_bytes}B"} if resources.memory_bytes else {}),
        **({"nodes": str(resources.nodes)} if resources.nodes != 1 else {}),
        **(
            {"custom": {name: repr(count) for name, count in resources.custom.items()}}
            if resources.custom
            else {}
        ),
    }
