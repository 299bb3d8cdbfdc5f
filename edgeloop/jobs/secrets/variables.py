"""Secret variables of a job, which stand in no record.

What refers to a variable of somebody's environment (`${HF_TOKEN}`) is recorded as it is written:
another attempt takes the value that it has then. A value itself is taken out of the record and kept
in `runs/<name>/secrets.json`, which only its owner may read. A variable counts as secret if the job
says so (`secrets`, `--secret`), by its name, such as `WANDB_API_KEY` or `DB_PASSWORD`, or if its
value looks like a key, a token or an address with a password.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

from edgeloop.errors import BadJob
from edgeloop.jobs.secrets.patterns import is_secret_variable
from edgeloop.settings import has_variable

KEY = "variables"
_HIDDEN = "${secret:%s}"  # not a variable's name: nothing is filled in by accident
_REFERENCE = re.compile(r"\$\{\w+\}")


def secret_values(variables: Mapping[str, str], named: Collection[str]) -> dict[str, str]:
    """The variables whose values are secret and written out."""
    return {
        name: text
        for name, text in variables.items()
        if not _REFERENCE.fullmatch(text) and (name in named or is_secret_variable(name, text))
    }


def without_values(
    document: Mapping[str, object], secrets: Collection[str]
) -> Mapping[str, object]:
    """A specification for a record: without the values of these variables."""
    variables = document.get(KEY)
    if not secrets or not isinstance(variables, Mapping):
        return document
    hidden = {name: _HIDDEN % name if name in secrets else text for name, text in variables.items()}
    return {**document, KEY: hidden}


def with_values(
    document: Mapping[str, object], kept: Mapping[str, str], where: str
) -> Mapping[str, object]:
    """The specification again. A value that is not kept here is that of the environment; raises
    BadJob if it has none."""
    variables = document.get(KEY)
    if not isinstance(variables, Mapping):
        return document
    restored = dict(variables)
    for name, text in variables.items():
        if text == _HIDDEN % name:
            if name not in kept and not has_variable(name):
                reason = f"the value of the secret {name} is not on this machine: set the variable"
                raise BadJob(where=where, reason=f"{reason} {name}, and try again")
            restored[name] = kept.get(name, f"${{{name}}}")
    return {**document, KEY: restored}
