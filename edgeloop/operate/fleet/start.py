"""`python -m edgeloop.operate.fleet.start WORDS`: prepares a machine, then becomes a runner.

The words are options of `edgeloop runner`, with two differences. `--dataset` may name a dataset of
the store, such as `faces@3`, which is fetched into this machine's cache first, once for all its
runners. `--set KEY=VALUE` is a setting of a project whose edgeloop.yaml the machine does not have.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from edgeloop._util.files import write_atomic
from edgeloop._util.redact import redact
from edgeloop._util.system import python_module
from edgeloop.errors import BadInput, EdgeloopError
from edgeloop.settings import SETTINGS_FILE, Settings, cache_folder

_PATH_STARTS = ("/", ".", "~")


def main() -> None:
    try:
        words = prepared(sys.argv[1:])
    except EdgeloopError as error:
        sys.exit(f"edgeloop: {redact(str(error))}")
    os.execv(sys.executable, python_module("edgeloop", "runner", *words))  # noqa: S606


def prepared(words: Sequence[str]) -> list[str]:
    """The words for `edgeloop runner`, once the dataset is there. May change the current folder."""
    rest, written = _taken(words, "--set")
    rest, datasets = _taken(rest, "--dataset")
    if written:
        os.chdir(_project(written))
    if datasets:
        rest += ["--dataset", str(_dataset(datasets[-1]))]
    return rest


def is_folder(dataset: str) -> bool:
    """Whether a dataset is given as a folder of the machine, not as a name in the store."""
    return dataset.startswith(_PATH_STARTS)


def _taken(words: Sequence[str], option: str) -> tuple[list[str], list[str]]:
    """The words without an option, and its values."""
    rest: list[str] = []
    values: list[str] = []
    left = iter(words)
    for word in left:
        if word == option:
            value = next(left, None)
            if value is None:
                raise BadInput(reason=f"{option} needs a value")
            values.append(value)
        elif word.startswith(f"{option}="):
            values.append(word.partition("=")[2])
        else:
            rest.append(word)
    return rest, values


def _project(written: Sequence[str]) -> Path:
    """A folder with these settings, shared by all runners of this machine that have the same."""
    keys = dict(word.split("=", 1) for word in written)
    text = "".join(f"{name}: {value}\n" for name, value in sorted(keys.items()))
    digest = hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
    file = cache_folder() / "fleet" / digest / SETTINGS_FILE
    if not file.is_file():
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(file, text)
    return file.parent


def settings_words(settings: Mapping[str, object]) -> tuple[str, ...]:
    """Settings as words of `start`: JSON is YAML."""
    pairs = (f"{name}={json.dumps(value)}" for name, value in sorted(settings.items()))
    return tuple(word for pair in pairs for word in ("--set", pair))


def _dataset(text: str) -> Path:
    """A folder of this machine, or the copy of a version in its cache."""
    if is_folder(text) or Path(text).is_dir():
        return Path(text).expanduser()
    from edgeloop.node.datasets import Datasets
    from edgeloop.store.location import open_blobs

    datasets = Datasets(open_blobs(Settings.load().location))
    reference = datasets.resolve(text)
    return datasets.fetch(reference.name, reference.version, cache_folder(), _tell)


def _tell(sentence: str) -> None:
    sys.stderr.write(f"edgeloop: {sentence}\n")


if __name__ == "__main__":
    main()
