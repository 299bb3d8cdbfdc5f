"""Files in YAML: settings, jobs, searches and fleets; and the JSON of older projects."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path

Builder = Callable[[Path], None]


def _bomb(width: int = 10, levels: int = 9) -> str:
    """Ten aliases of ten aliases of …"""
    names = [f"a{level}" for level in range(levels)]
    lines = [f"{names[0]}: &{names[0]} [{', '.join('x' * width)}]"]
    for before, here in pairwise(names):
        lines.append(f"{here}: &{here} [{', '.join([f'*{before}'] * width)}]")
    return "\n".join(lines)


def _merge_bomb() -> str:
    lines = ["a0: &a0 {x: 1, y: 2}"]
    for level in range(1, 40):
        lines.append(f"a{level}: &a{level} {{b: *a{level - 1}, c: *a{level - 1}}}")
    return "\n".join(lines)


def _merge_chain() -> str:
    """Every `<<` brings nothing new, and once copied all that was there."""
    keys = ", ".join(f"k{number}: 1" for number in range(20_000))
    return f"big: &big {{{keys}}}\nnone: &none {{}}\nx:\n  <<: *big\n" + "  <<: *none\n" * 20_000


TEXTS: Mapping[str, str] = {
    "alias bomb": _bomb(),
    "alias bomb, wide": _bomb(300, 4),
    "alias bomb of mappings": _merge_bomb(),
    "alias that holds itself": "a: &a [*a]",
    "alias that merges itself": "a: &a {<<: *a}",
    "alias of nothing": "a: *b",
    "merges without end": _merge_chain(),
    "alias of a long text": f"a: &a {'x' * 500_000}\nb: [{', '.join(['*a'] * 40_000)}]",
    "100,000 aliases": f"a: &a x\nb: [{', '.join(['*a'] * 100_000)}]",
    "brackets 20,000 deep": "[" * 20_000,
    "brackets 20,000 deep, closed": "[" * 20_000 + "]" * 20_000,
    "braces 20,000 deep": "{a: " * 20_000,
    "dashes 20,000 deep": "- " * 20_000 + "x",
    "questions 20,000 deep": "? " * 20_000,
    "indents 1,000 deep": "\n".join(" " * level + "a:" for level in range(1_000)),
    "a key twice": "experiment: abc\nexperiment: abd",
    "a key that is a list": "? [a, b]\n: 1",
    "a key of 100 kB": "k" * 100_000 + ": 1",
    "an impossible date": "experiment: 2001-13-45",
    "an impossible time": "experiment: 2001-01-01T99:99:99Z",
    "a date": "experiment: 2001-01-01",
    "400 digits": "lease_seconds: " + "9" * 400,
    "5,000 digits": "lease_seconds: " + "9" * 5_000,
    "5,000 hexadecimal digits": "lease_seconds: 0x" + "f" * 5_000,
    "100,000 binary digits": "max_attempts: 0b" + "1" * 100_000,
    "a count of 400 digits": "max_attempts: " + "9" * 400,
    "a count below 0": "max_attempts: -1",
    "a count with a fraction": "max_attempts: 1.5",
    "1e300 seconds": "lease_seconds: 1.0e+300",
    "endless seconds": "lease_seconds: .inf",
    "no number of seconds": "lease_seconds: .nan",
    "a truth for seconds": "lease_seconds: true",
    "base 60": "lease_seconds: 2:16",
    "a tag that calls": "a: !!python/object/apply:os.system [touch owned]",
    "a tag that names": "a: !!python/name:os.system x",
    "a tag of bytes": "experiment: !!binary aGVsbG8=",
    "a tag of a set": "a: !!set {b}",
    "a tag of one's own": "a: !evil x",
    "a null byte": "a: \0",
    "escapes": 'experiment: "a\\x1b[2J\\x07"\n"\\x1b]0;owned\\x07": 1',
    "a lone surrogate": 'experiment: "\\ud800"',
    "no UTF-8": "\udcff\udcfe: 1",
    "two documents": "a: 1\n---\nb: 2",
    "a directive": "%YAML 9.9\n---\na: 1",
    "tabs": "a:\n\t- b",
    "a quote that never ends": 'a: "' + "x" * 100_000,
    "a comment of 900 kB": "#" + "x" * 900_000 + "\na: [",
    "colons": ":" * 100_000,
    "stars": "*" * 100_000,
    "ampersands": "&a " * 100_000,
    "commas": "[" + "," * 100_000 + "]",
    "more than 1 MB": "# " + "x" * 1_100_000,
    "a list": "- a\n- b",
    "a text": "hello",
    "a number": "7",
}


def _text(name: str, content: str) -> Builder:
    def build(folder: Path) -> None:
        (folder / name).write_bytes(content.encode(errors="surrogateescape"))

    return build


def _pipe(name: str) -> Builder:
    return lambda folder: os.mkfifo(folder / name)


def _link(name: str, target: str) -> Builder:
    return lambda folder: (folder / name).symlink_to(target)


SETTINGS: Mapping[str, Builder] = {
    name: _text("edgeloop.yaml", text) for name, text in TEXTS.items()
}
SETTINGS_ODD = {
    "store of 1 MB": _text("edgeloop.yaml", f"store: {'x' * 900_000}"),
    "store with escapes": _text("edgeloop.yaml", 'store: "\\x1b[2J://\\x07"'),
    "store with a null": _text("edgeloop.yaml", 'store: "sqlite:a\\0b"'),
    "computes with a list": _text("edgeloop.yaml", "computes: [a]"),
    "compute without kind": _text("edgeloop.yaml", "computes: {a: {b: c}}"),
    "compute twice": _text("edgeloop.yaml", "a: {kind: ray}\ncomputes: {a: {kind: ray}}"),
    "compute named ..": _text("edgeloop.yaml", 'computes: {"../x": {kind: ray}}'),
    "variable that is not set": _text("edgeloop.yaml", "experiment: ${NO_SUCH_VARIABLE}"),
    "10,000 unknown keys": _text(
        "edgeloop.yaml", "\n".join(f"k{number}: 1" for number in range(10_000))
    ),
    "a folder": lambda folder: (folder / "edgeloop.yaml").mkdir(),
    "a circular link": _link("edgeloop.yaml", "edgeloop.yaml"),
    "an endless device": _link("edgeloop.yaml", "/dev/zero"),
    "a pipe": _pipe("edgeloop.yaml"),
}

# The reader is the same: of each kind of file those that went wrong once, and its own numbers.
_SOME = (
    *("alias bomb", "alias bomb of mappings", "brackets 20,000 deep", "5,000 digits"),
    *(
        "an impossible date",
        "a tag that calls",
        "no UTF-8",
        "more than 1 MB",
        "alias that holds itself",
    ),
    *("5,000 hexadecimal digits", "a list", "merges without end", "escapes", "two documents"),
)
_JOB = "script: missing.py\n"


def _with_script(text: str) -> Builder:
    def build(folder: Path) -> None:
        (folder / "train.py").write_text("raise SystemExit(1)")
        (folder / "job.yaml").write_text(f"script: train.py\n{text}")

    return build


JOBS: Mapping[str, Builder] = {
    **{name: _text("job.yaml", TEXTS[name]) for name in _SOME},
    "a pipe": _pipe("job.yaml"),
    "endless": _link("job.yaml", "/dev/zero"),
    "timeout": _text("job.yaml", f"{_JOB}timeout: {'9' * 400}s"),
    "retries": _text("job.yaml", f"{_JOB}retries: {'9' * 400}"),
    "memory": _text("job.yaml", f"{_JOB}resources: {{memory: {'9' * 400}GB}}"),
    "cpus": _text("job.yaml", f"{_JOB}resources: {{cpus: 1e300}}"),
    "script above": _text("job.yaml", "script: ../../../../bin/sh"),
    "code above": _text("job.yaml", f"{_JOB}code: ../../../.."),
    "code a device": _text("job.yaml", f"{_JOB}code: /dev"),
    "sweep of 10**18 jobs": _with_script(
        "sweep:\n" + "".join(f"  p{n}: [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]\n" for n in range(18))
    ),
    "sweep of 20,000 values": _with_script(
        f"sweep: {{p: [{', '.join(map(str, range(20_000)))}]}}\n"
    ),
    "pattern": _text("job.yaml", f"{_JOB}outputs: ['{'**/' * 1_000}x']"),
    "dataset": _text("job.yaml", f"{_JOB}data: ['../../etc']"),
    "variable": _text("job.yaml", f"{_JOB}variables: {{LD_PRELOAD: ${{NO_SUCH_VARIABLE}}}}"),
    "name": _text("job.yaml", f"{_JOB}name: {'x' * 10_000}"),
    "environment": _text("job.yaml", f"{_JOB}environment: ../../../etc/passwd"),
}
_SEARCH = "objectives: {params: }\n"
SEARCHES: Mapping[str, Builder] = {
    **{name: _text("faces.yaml", TEXTS[name]) for name in _SOME},
    "a pipe": _pipe("faces.yaml"),
    "folder above": _text("faces.yaml", f"{_SEARCH}search: {{folder: ../../x}}"),
    "folder elsewhere": _text("faces.yaml", f"{_SEARCH}search: {{folder: /tmp/x}}"),
    "folder of a user": _text("faces.yaml", f"{_SEARCH}search: {{folder: ~/x}}"),
    "budget": _text("faces.yaml", f"{_SEARCH}search: {{budget: {'9' * 400}}}"),
    "size": _text("faces.yaml", f"{_SEARCH}search: {{size: [{'9' * 30}, 64]}}"),
    "classes": _text("faces.yaml", f"{_SEARCH}search: {{classes: {'9' * 30}}}"),
    "constraint": _text(
        "faces.yaml", f"{_SEARCH}search: {{constraints: {{params: [0, {'9' * 400}]}}}}"
    ),
    "space elsewhere": _text("faces.yaml", f"{_SEARCH}search: {{space: /etc/passwd:build}}"),
    "name": _text("faces.yaml", f"{_SEARCH}search: {{name: ../../x}}"),
    "sampler": _text("faces.yaml", f"{_SEARCH}search: {{sampler: {'x' * 10_000}}}"),
}


def _space(make: Callable[[Path], object]) -> Builder:
    def build(folder: Path) -> None:
        make(folder / "space.py")
        _text("faces.yaml", f"{_SEARCH}search: {{space: 'space.py:build'}}")(folder)

    return build


SPACES: Mapping[str, Builder] = {
    "a pipe": _space(os.mkfifo),
    "endless": _space(lambda path: path.symlink_to("/dev/zero")),
    "no code": _space(lambda path: path.write_bytes(bytes(1_000))),
    "too deep": _space(lambda path: path.write_text("(" * 10_000)),
    "outside": _text("faces.yaml", f"{_SEARCH}search: {{space: '/etc/passwd:build'}}"),
}


def _ignored(content: bytes, *names: str) -> Builder:
    """The code is too large, so that nothing is ever sent: but first all of it is looked at."""

    def build(folder: Path) -> None:
        (folder / ".gitignore").write_bytes(content)
        (folder / "edgeloop.yaml").write_text("code_limit_mb: 0.000001")
        (folder / "train.py").write_text("raise SystemExit(1)")
        for name in names:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text("x")

    return build


IGNORES: Mapping[str, Builder] = {
    "stars": _ignored(b"*a*a*a*a*a*a*a*a*a*a*b", "a" * 60),
    "stars and questions": _ignored(b"*?*?*?*?*?*?*?*?*?*?b", "a" * 200),
    "folders": _ignored(b"**/a/**/a/**/a/**/a/**/a/**/b", "/".join("a" * 60)),
    "brackets": _ignored(b"*[a-z]*[a-z]*[a-z]*[a-z]*[a-z]*[a-z]!", "a" * 200),
    "more than 1 MB": _ignored(b"*.pyc\n" * 200_000),
    "noise": _ignored(bytes(range(256)) * 10 + b"[" * 1_000 + b"\\"),
}


FLEETS: Mapping[str, Builder] = {
    "runners": _text("edgeloop.yaml", f"fleet: {{runners: {'9' * 400}}}"),
    "runners, many": _text("edgeloop.yaml", "fleet: {runners: '1:999999'}"),
    "cpus": _text("edgeloop.yaml", f"fleet: {{cpus: {'9' * 30}}}"),
    "weight": _text("edgeloop.yaml", "fleet: {experiments: {abc: {weight: 1.0e+300}}}"),
    "weight, endless": _text("edgeloop.yaml", "fleet: {experiments: {abc: .inf}}"),
    "quota": _text("edgeloop.yaml", f"fleet: {{experiments: {{abc: {{quota: {'9' * 400}}}}}}}"),
    "idle": _text("edgeloop.yaml", "fleet: {idle_seconds: .inf}"),
    "grace": _text("edgeloop.yaml", "fleet: {grace: 1.0e+300}"),
    "name": _text("edgeloop.yaml", "fleet: {name: '../x'}"),
    "options": _text("edgeloop.yaml", 'fleet: {options: ["\\x1b[2J"]}'),
    "a list": _text("edgeloop.yaml", "fleet: [a]"),
}


def _azureml(name: str, content: bytes | None) -> Builder:
    def build(folder: Path) -> None:
        (folder / ".azureml").mkdir()
        if content is None:
            os.mkfifo(folder / ".azureml" / name)
        else:
            (folder / ".azureml" / name).write_bytes(content)

    return build


AZUREML: Mapping[str, Builder] = {
    "config deep": _azureml("config.json", b"[" * 100_000),
    "config deep objects": _azureml("config.json", b'{"a":' * 100_000),
    "config a pipe": _azureml("config.json", None),
    "config no JSON": _azureml("config.json", b"\xff\xfe\x00"),
    "config a list": _azureml("config.json", b"[]"),
    "config large": _azureml("config.json", b'{"a": "' + b"x" * 2_000_000 + b'"}'),
    "config 5,000 digits": _azureml("config.json", b'{"a": ' + b"9" * 5_000 + b"}"),
    "config of numbers": _azureml("config.json", b'{"subscription_id": 7}'),
    "datastore a list": _azureml("datastore.json", b'{"account_key": ["secret"]}'),
    "datastore deep": _azureml("datastore.json", b"[" * 100_000),
    "environment above": _azureml(
        "environment.json",
        json.dumps({"python": {"condaDependenciesFile": "../../../../dev/zero"}}).encode(),
    ),
    "environment wrong": _azureml("environment.json", b'{"docker": 7}'),
}
ARCHITECTURES: Mapping[str, Builder] = {
    "deep": _text("arch.json", "[" * 50_000),
    "a pipe": _pipe("arch.json"),
    "endless": _link("arch.json", "/dev/zero"),
    "no JSON": _text("arch.json", "\udcff\udcfe"),
    "large": _text("arch.json", "[" + "1," * 2_000_000),
    "5,000 digits": _text("arch.json", '{"space": ' + "9" * 5_000 + "}"),
    "a list": _text("arch.json", "[]"),
    "shape of 10**18": _text(
        "arch.json",
        '{"space": "hourglass", "params": {}, "shape": [1, 3, 1000000000000000000, 64], '
        '"classes": 2}',
    ),
    "params a list": _text(
        "arch.json", '{"space": "hourglass", "params": [], "shape": [1, 3, 64, 64], "classes": 2}'
    ),
}
TABLES: Mapping[str, Builder] = {
    "no columns": _text("x.csv", "a,b\n1,2\n"),
    "no numbers": _text("x.csv", "model,latency_ms\na,b\n"),
    "field of 1 MB": _text("x.csv", "model,latency_ms\n" + "x" * 1_000_000),
    "no UTF-8": _text("x.csv", "model,latency_ms\n\udcff,1\n"),
    "a pipe": _pipe("x.csv"),
    "endless": _link("x.csv", "/dev/zero"),
    "more than 10 MB": _text("x.csv", "model,latency_ms\n" + "a,1\n" * 3_000_000),
}
