"""A job's specification, from a file or a command line, completely checked.

It is a mapping of strings, lists and mappings, whether it was written in YAML, typed on the command
line or read back from a record. So it is checked in one place, also when a job is submitted again.
Strings stay as they were typed: a learning rate of `1e-3` reaches the script as `1e-3`. Nothing is
sent, stored or started here.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from edgeloop._util.schema import validated, with_overrides
from edgeloop._util.values import LINES
from edgeloop._util.yaml import KeyPath, Origin, read_document
from edgeloop.errors import BadJob
from edgeloop.jobs.computes.base import Resources
from edgeloop.jobs.fields import DEFAULT_GRACE_S, DEFAULT_PRIORITY, JobFile, plain_stem
from edgeloop.jobs.protocol.ticket import EarlierOutputs, Environment
from edgeloop.jobs.protocol.urls import RemotePath
from edgeloop.paths import find_project
from edgeloop.settings import filled_in

_PLACEHOLDER = re.compile(r"\{([A-Za-z_][A-Za-z0-9_.-]*)\}")
_WRAPPER_WORDS = frozenset({"outputs", "data", "job", "attempt"})  # filled in where the job runs


@dataclass(frozen=True)
class JobSpec:
    """A checked job specification, as `Jobs.submit` makes it from a script or a YAML file.

    An empty name, compute or experiment means the default.

    Attributes:
        code: Folder that is sent as code.
        stem: Beginning of the name if none is given.
        name: Name of the job.
        script: Path of the script inside the code.
        command: The command, if there is no script.
        args: Arguments of the command.
        data: Datasets that the job reads.
        writes: Datasets that the job creates.
        sources: Data at URLs that the job reads.
        targets: URLs that the job writes to.
        outputs: Patterns of files that are collected besides `outputs/`.
        environment: What is installed on the node.
        compute: Name of the compute.
        resources: CPUs, GPUs, memory, nodes and custom resources.
        cpus_given: Whether the number of CPUs was asked for, or is the default.
        tags: Labels to find the job by.
        experiment: Experiment it belongs to.
        timeout_s: Seconds after which it is ended.
        retries: Restarts after a failure.
        priority: Lower runs sooner; only for the compute `local`.
        grace_s: Seconds from SIGTERM to SIGKILL when it is canceled.
        params: Values for `{name}` in the command, or options `--name VALUE`.
        sweep: Values of each swept parameter.
        variables: Environment variables, with `${NAME}` not yet replaced.
        secrets: Names of variables whose values are secret, whatever they are called.
        edgeloop: Extras of Edgeloop, or `core`, if Edgeloop itself travels with the code.
        earlier: Outputs of other jobs that it starts with.

    Examples:
        >>> from pathlib import Path
        >>> from edgeloop.jobs import spec_of_script
        >>> size = Path("train.py").write_text("")
        >>> spec = spec_of_script("train.py", ["--lr", "1e-3"], {"resources": {"gpus": 1}})
        >>> spec.full_command(), spec.resources.gpus
        (('python', 'train.py', '--lr', '1e-3'), 1.0)
    """

    code: Path
    stem: str = "job"  # beginning of the name if none is given
    name: str = ""
    script: str = ""  # inside the code; the command starts it
    command: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    data: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    sources: tuple[RemotePath, ...] = ()
    targets: tuple[RemotePath, ...] = ()
    outputs: tuple[str, ...] = ()
    environment: Environment = field(default_factory=Environment)
    compute: str = ""
    resources: Resources = field(default_factory=Resources)
    cpus_given: bool = False
    tags: tuple[str, ...] = ()
    experiment: str = ""
    timeout_s: float | None = None
    retries: int = 0
    priority: int = DEFAULT_PRIORITY
    grace_s: float = DEFAULT_GRACE_S
    params: Mapping[str, str] = field(default_factory=dict)
    sweep: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict, repr=False)
    secrets: tuple[str, ...] = ()
    edgeloop: tuple[str, ...] = ()
    earlier: tuple[EarlierOutputs, ...] = ()

    def full_command(self) -> tuple[str, ...]:
        """Build the command, with parameters filled in or appended as options.

        Returns:
            The words; `{outputs}`, `{input:…}` and the like are filled in on the node.
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
        """Replace `${NAME}` in the variables by the values of the environment, which may be secret.

        Returns:
            The environment variables of the job.
        """
        where = f"variables of {self.name or self.stem}"
        return {name: str(filled_in(text, where)) for name, text in self.variables.items()}

    @property
    def threads(self) -> int:
        """Threads that numerical libraries should use; 0 if no number of CPUs was asked for."""
        is_asked = self.cpus_given or self.resources.cpus != Resources.cpus
        return max(1, int(self.resources.cpus)) if is_asked else 0

    def document(self) -> dict[str, object]:
        """Write the specification as the content of a job file.

        Returns:
            A mapping from which `edgeloop.jobs.spec_of` reads the same specification.
        """
        program = {"script": self.script} if self.script else {"command": list(self.command)}
        environment, needs = self.environment, self.resources
        plain: dict[str, object] = {
            **{"name": self.name, "code": str(self.code)},
            **program,
            "args": list(self.args),
            "data": [*self.data, *(place.document() for place in self.sources)],
            "writes": [*self.writes, *(place.document() for place in self.targets)],
            "outputs": list(self.outputs),
            "environment": {environment.kind: environment.file} if environment.file else "",
            "compute": self.compute,
            "resources": {
                **({"cpus": repr(needs.cpus)} if self.threads else {}),
                "gpus": repr(needs.gpus),
                **({"memory": f"{needs.memory_bytes}B"} if needs.memory_bytes else {}),
                **({"nodes": str(needs.nodes)} if needs.nodes != 1 else {}),
                **(
                    {"custom": {name: repr(n) for name, n in needs.custom.items()}}
                    if needs.custom
                    else {}
                ),
            },
            **{"tags": list(self.tags), "experiment": self.experiment},
            **{"timeout": _seconds(self.timeout_s), "grace": _seconds(self.grace_s)},
            **{"retries": str(self.retries), "priority": str(self.priority)},
            **{"params": dict(self.params), "variables": dict(self.variables)},
            "secrets": list(self.secrets),
            "sweep": {name: list(values) for name, values in self.sweep.items()},
            "edgeloop": list(self.edgeloop),
        }
        return {key: value for key, value in plain.items() if value not in ("", [], {})}


def spec_from(
    job: JobSpec | Path | str, args: Sequence[str], options: Mapping[str, object]
) -> JobSpec:
    """From whatever names a job; options win."""
    if isinstance(job, JobSpec):
        overrides = {**options, "args": list(args)} if args else options
        return spec_of({**job.document(), **overrides}, job.code, job.name or job.stem, job.stem)
    if Path(job).suffix in (".yaml", ".yml"):
        return read_spec(Path(job), (), {**options, "args": list(args)} if args else options)
    return spec_of_script(str(job), args, options)


def read_spec(
    path: Path, overrides: Sequence[str] = (), options: Mapping[str, object] | None = None
) -> JobSpec:
    """A specification in YAML, with `key=value` overrides. Its paths are relative to its folder.

    `options` has keys of the file as well and takes precedence: mappings are merged, everything
    else is replaced. Its `code` is relative to the current folder.
    """
    options = dict(options or {})
    if "code" in options:
        options["code"] = str(Path(str(options["code"])).absolute())
    written, origin = read_document(path, BadJob, texts=True)
    if not isinstance(written, dict):
        raise origin.at((), f"{LINES}, for example 'script: train.py'")
    document = {
        key: value if key == "variables" else filled_in(value, path.name)
        for key, value in written.items()
    }
    document, origin = _overridden(document, overrides, origin)
    document = _merged(document, options)
    return spec_of(document, path.absolute().parent, origin, stem=path.stem)


def spec_of_script(
    script: str,
    args: Sequence[str] = (),
    options: Mapping[str, object] | None = None,
    here: Path | None = None,
) -> JobSpec:
    """A script, relative to the current folder; the code is the project around it.

    `options` has the keys of a file: `{"data": ["faces"], "timeout": "2h"}`.
    """
    here = here or Path.cwd()
    options = dict(options or {})
    code = (here / str(options.pop("code", "") or find_project(here))).resolve()
    found = (here / script).absolute()
    if not found.is_file():
        raise BadJob(where=script, reason=f"there is no file {found}")
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
    where = spec.name or spec.stem
    document, _ = _overridden(spec.document(), overrides, Origin(where, BadJob))
    if args is not None:
        document["args"] = list(args)
    return spec_of(document, spec.code, where, spec.stem)


def spec_of(
    document: Mapping[str, object], folder: Path, where: str | Origin, stem: str = "job"
) -> JobSpec:
    """Check everything that can be checked without a network; raises BadJob."""
    origin = Origin(where, BadJob) if isinstance(where, str) else where
    keys = validated(JobFile, document, origin)
    variables = {**{name: f"${{{name}}}" for name in keys.secrets}, **keys.variables}
    filled_in(variables, origin.name)  # fails now if one is not set
    code = (folder / keys.code).expanduser().resolve()
    if not code.is_dir():
        raise origin.at(("code",), f"the code folder {code} is not there")
    if bool(keys.script) == bool(keys.command):
        both = "both 'script' and 'command' are there" if keys.script else "nothing to run"
        raise origin.at((), f"{both}: give one, for example 'script: train.py'")
    try:
        path: KeyPath = ("script",)
        command = program_for(keys.script, code) if keys.script else keys.command
        path = ("environment",)
        if keys.environment.kind in ("requirements", "conda"):
            _file_inside(keys.environment.file, code)
    except ValueError as error:
        raise origin.wrong(path, str(error)) from None
    same = (
        *("name", "script", "args", "outputs", "environment", "compute"),
        *("tags", "experiment", "retries", "priority", "params", "sweep", "secrets", "edgeloop"),
    )
    return JobSpec(
        code=code,
        stem=plain_stem(stem),
        command=command,
        resources=keys.resources.resources(),
        cpus_given="cpus" in keys.resources.model_fields_set,
        timeout_s=keys.timeout,
        grace_s=keys.grace,
        data=tuple(item for item in keys.data if isinstance(item, str)),
        writes=tuple(item for item in keys.writes if isinstance(item, str)),
        sources=_places(keys.data, keys.mode),
        targets=_places(keys.writes, "upload" if keys.mode == "download" else keys.mode),
        variables=variables,
        **{name: getattr(keys, name) for name in same},
    )


def _places(written: Sequence[str | RemotePath], mode: str) -> tuple[RemotePath, ...]:
    """Those at URLs; one without a mode of its own has that of the job."""
    found = [item for item in written if isinstance(item, RemotePath)]
    return tuple(item if item.mode else replace(item, mode=mode) for item in found)


def program_for(script: str, code: Path) -> tuple[str, ...]:
    """The command that starts a script, by its suffix; ValueError if it cannot be started."""
    path = _file_inside(script, code)
    safe = f"./{script}" if script.startswith("-") else script
    if path.suffix == ".py":
        return ("python", safe)
    if path.suffix == ".sh":
        return ("bash", safe)
    if os.access(path, os.X_OK):
        return (f"./{script}",)
    reason = f"is neither .py nor .sh nor executable: 'chmod +x {script}', or use 'command'"
    raise ValueError(reason)


def _file_inside(file: str, code: Path) -> Path:
    """A file of the code; its path may not lead out of it."""
    path = code / file
    if Path(file).is_absolute() or ".." in Path(file).parts:
        raise ValueError(f"must be a path inside the code folder, not {file!r}")
    if not path.is_file():
        raise ValueError(f"names {file!r}, which is not in {code}")
    return path


def _overridden(
    document: Mapping[str, object], overrides: Sequence[str], origin: Origin
) -> tuple[dict[str, object], Origin]:
    return with_overrides(
        JobFile, document, overrides, origin, example="epochs=30", texts=True, params="params"
    )


def _merged(document: Mapping[str, object], options: Mapping[str, object]) -> dict[str, object]:
    merged = dict(document)
    for key, value in options.items():
        before = merged.get(key)
        both = isinstance(before, Mapping) and isinstance(value, Mapping)
        if key == "secrets":
            merged[key] = [*_listed(before), *_listed(value)]
            continue
        is_one_choice = key == "environment"
        merged[key] = {**before, **value} if both and not is_one_choice else value  # type: ignore[dict-item]
    return merged


def _listed(value: object) -> list[object]:
    return list(value) if isinstance(value, list | tuple) else [value] if value else []


def _seconds(value: float | None) -> str:
    return "" if value is None else f"{value:.9f}".rstrip("0").rstrip(".") + "s"
