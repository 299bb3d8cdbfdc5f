"""Options of a task, for what a dataset cannot say by itself: `detection.json`, `depth.json`, …

The file is in the dataset's folder or beside it. Every key has a default, and most defaults are to
find out. A key that does not exist is an error.
"""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

from edgeloop._util.schema import Section, validated
from edgeloop._util.yaml import read_document
from edgeloop.errors import BadSetting

Options = TypeVar("Options", bound=Section)


def read_options(model: type[Options], folder: Path, task: str) -> Options:
    """The options of a task; its defaults without a file."""
    name = f"{task}.json"
    for path in (folder / name, folder.absolute().parent / name):
        if path.is_file():
            return validated(model, *read_document(path, BadSetting))
    return model()
