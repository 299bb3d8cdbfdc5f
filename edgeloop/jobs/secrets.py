"""Secrets in a job: its variables, its arguments and its code."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from urllib.parse import unquote

from edgeloop._util.redact import (
    SHORTEST_MASKED,
    find_secrets,
    is_placeholder,
    is_random,
    is_secret_variable,
)
from edgeloop.errors import BadJob
from edgeloop.settings import has_variable

LARGEST_SOURCE = 1_000_000  # bytes of a file that are searched for tokens before it is sent
SHORTEST_LITERAL = 6  # a shorter value of a secret is found everywhere, as a part of other words

# Options of commands, which are less often secret than variables: --key, --max-tokens, --pad-token.
_OPTION = re.compile(
    r"(?i)-{1,2}(?:[a-z0-9]{1,30}[-_.]){0,4}(?:password|passwd|passphrase|pwd|secret|credentials?|"
    r"token|(?:api|access|account|secret|private|shared|storage|signing)[-_]?key|"
    r"(?:access|auth|bearer|api)token|connection[-_]?string)"
)
_OF_TEXT = re.compile(
    r"(?i)-{1,2}(?:.{0,40}[-_.])?(?:pad|eos|bos|unk|sep|cls|mask|special|image|stop|end|start|sot|"
    r"eot|prompt|trigger|class|placeholder|per|num|first|last|initializer)[-_.]?token"
)
_SHORTEST_ARGUMENT = 6
_SHORTEST_PASSWORD = 6
_NUMBER = re.compile(r"[-+]?[\d_]{0,30}\.?\d{0,30}(?:e[-+]?\d{1,4})?", re.IGNORECASE)


def secret_argument(words: Sequence[str]) -> str | None:
    """What the first secret in a command is: by how it looks, or as the value of an option whose
    name says so, in one word or in two."""
    for word, following in zip(words, (*words[1:], ""), strict=True):
        secret = next(find_secrets(word), None)
        if secret is not None:
            return secret.kind
        option, has_value, value = word.partition("=")
        if not has_value and not following.startswith("-"):
            value = following
        if _OPTION.fullmatch(option) and not _OF_TEXT.fullmatch(option):
            is_plain = len(value) < _SHORTEST_ARGUMENT or _NUMBER.fullmatch(value) is not None
            if not is_plain and is_secret_variable("password", value):
                return f"the value of {option}"
    return None


def exposed_tokens(content: bytes) -> Iterator[tuple[int, str]]:
    """Lines of a file, and which tokens or keys they have. Passwords are left out, since in code
    they are most often examples, unless they are random ones in an address. So are files that are
    no text, and what comes late in large ones, which are data."""
    content = content[:LARGEST_SOURCE]
    if b"\0" in content:
        return
    text = content.decode("latin-1")
    for match in find_secrets(text):
        secret = match.text(text)
        if not is_placeholder(secret) and (
            not match.kind.startswith("password") or _is_password(match.kind, secret)
        ):
            yield text.count("\n", 0, match.start) + 1, match.kind


def _is_password(kind: str, text: str) -> bool:
    word = unquote(text)
    return "address" in kind and len(word) >= _SHORTEST_PASSWORD and is_random(word)


# Secret variables of a job, which stand in no record.
#
# A reference to a variable of the environment (`${HF_TOKEN}`) is recorded as it is written:
# another attempt takes the value that it has then. A value itself is taken out of the record and
# kept in `runs/<name>/secrets.json`, which only its owner may read. A variable counts as secret if
# the job says so (`secrets`, `--secret`), by its name, such as `WANDB_API_KEY` or `DB_PASSWORD`, or
# if its value looks like a key, a token or an address with a password.


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


def secret_names(filled: Mapping[str, str], named: Collection[str]) -> tuple[str, ...]:
    """The variables, with references filled in, whose values are masked where the job runs."""
    return tuple(n for n, text in filled.items() if n in named or is_secret_variable(n, text))


def too_short(filled: Mapping[str, str], named: Collection[str]) -> list[str]:
    """Those of them whose values cannot be masked, because they are parts of ordinary words."""
    secrets = secret_names(filled, named)
    return [name for name in secrets if 0 < len(filled[name].strip()) < SHORTEST_MASKED]


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
    document: Mapping[str, object], values: Mapping[str, str], where: str
) -> Mapping[str, object]:
    """The specification again. A value that is not kept here is that of the environment; raises
    BadJob if it has none."""
    variables = document.get(KEY)
    if not isinstance(variables, Mapping):
        return document
    restored = dict(variables)
    for name, text in variables.items():
        if text == _HIDDEN % name:
            if name not in values and not has_variable(name):
                reason = f"the value of the secret {name} is not on this machine: set the variable"
                raise BadJob(where=where, reason=f"{reason} {name}, and try again")
            restored[name] = values.get(name, f"${{{name}}}")
    return {**document, KEY: restored}
