"""What is secret in a project and in a job: files, variables, and texts that look like keys."""

from __future__ import annotations

import os
import re
from bisect import bisect
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from edgeloop.errors import BadJob
from edgeloop.settings import has_variable

# How secrets look: names of variables, and the texts of keys, tokens, signatures and passwords.
#
# Every expression is applied from a literal word that it begins with or near, has bounded repeats
# and no nested ones, so that a hostile text costs no more than a plain one.


LONGEST = 4096  # of one match: a text may be searched in pieces that overlap by this much
LARGEST_SOURCE = 1_000_000  # bytes of a file that is searched for tokens before it is sent
SHORTEST_LITERAL = 6  # a shorter value of a secret is found everywhere, as a part of other words

_NAME = re.compile(
    r"(?i)(?:^|[^a-z])(?:pass(?:word|wd|phrase|code)?|pwd|secrets?|tokens?|credentials?|cred|auth|"
    r"bearer|cookie|sas|signature|dsn|pat|pin|salt|"
    r"(?:api|access|account|private|secret|shared|storage|signing|encryption|license|ssh|master)?"
    r"keys?|connection_?strings?|conn_?str|webhook(?:_?url)?)(?:$|[^a-z])"
)
_JOINED = re.compile(
    r"(?i)apikey|accesskey|accountkey|secretkey|privatekey|sharedkey|authtoken|accesstoken|"
    r"authorization|connectionstring|passwd|password|passphrase|secret|credential"
)
# Variables whose names have such a word and whose values are no secrets.
_PLAIN_NAME = re.compile(r"(?i)(?:^|_)(?:public_?keys?|keys?_?(?:id|name|file|path|dir|vault)|"
    r"(?:file|path|dir|folder|name|url|uri|host|port|user|username|id|type|mode|count|limit|size|"
    r"length|timeout|ttl|enabled|disabled|parallelism|sock|socket))$"
)  # fmt: skip
_OF_THE_SYSTEM = frozenset({"PWD", "OLDPWD", "XAUTHORITY", "GPG_TTY", "GPG_AGENT_INFO"})
_FINGERPRINT = re.compile(r"(?i)(?:0x)?(?:[0-9a-f]{16}|[0-9a-f]{40})")  # GPG_KEY of many images
_PLAIN_VALUE = re.compile(r"(?i)|\d{1,4}|true|false|yes|no|on|off|none|null|\*+|\$\{\w+\}")

_PLACEHOLDERS = frozenset(
    {"password", "passwd", "secret", "pass", "changeme", "example", "token", "user", "key", "pw"}
)
_ELLIPSIS = "…".encode().decode("latin-1")  # as files are read

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
_NUMBER = re.compile(r"[-+]?[\d_]{0,30}\.?\d{0,30}(?:e[-+]?\d{1,4})?", re.IGNORECASE)

_BEGIN = r"-----BEGIN (?:[A-Z0-9]{1,20} ){0,3}PRIVATE KEY(?: BLOCK)?-----"
_KEY_BODY = rb"[A-Za-z0-9+/=]{24}"
_BEGIN_BYTES = re.compile(_BEGIN.encode())
_FIRST_ON_LINE = re.compile(rb"(?:\A|\n)[ \t\r]{0,80}\Z")


@dataclass(frozen=True)
class SecretKind:
    """One kind of secret: what a person reads, and what its text is. The group `secret`, if there
    is one, is the part to hide."""

    name: str
    marks: tuple[str, ...]  # a text without any of these, in lower case, has none
    regex: re.Pattern[str]


@dataclass(frozen=True)
class Match:
    """A secret in a text: what it is, and from where to where."""

    kind: str
    start: int
    end: int

    def text(self, whole: str) -> str:
        return whole[self.start : self.end]


def _kind(name: str, marks: str, regex: str) -> SecretKind:
    return SecretKind(name, tuple(marks.split()), re.compile(regex))


KINDS = (
    _kind("private key", "private", rf"(?P<secret>{_BEGIN}[^-]{{0,4000}})"),
    _kind("age key", "age-secret-key-1", r"AGE-SECRET-KEY-1[A-Z0-9]{40,80}"),
    _kind(
        "storage account key",
        "accountkey sharedaccesskey",
        r"(?i)\b(?:AccountKey|SharedAccessKey)\s?=\s?(?P<secret>[A-Za-z0-9+/]{20,120}={0,2})",
    ),
    _kind(
        "shared access signature",
        "sig=",
        r"(?i)(?:[?&;]|\b|\\u0026)sig=(?P<secret>[A-Za-z0-9%+/_-]{20,200}={0,2})",
    ),
    _kind(
        "signed S3 or Google address",
        "signature=",
        r"(?i)\bX-(?:Amz|Goog)-Signature=(?P<secret>[0-9a-f]{32,1024})",
    ),
    _kind(
        "session token",
        "x-amz-security-token=",
        r"(?i)\bX-Amz-Security-Token=(?P<secret>[A-Za-z0-9%+/=_-]{20,2000})",
    ),
    _kind(
        "AWS secret key",
        "secret_access_key secretaccesskey secret_key secretkey",
        r"(?i:aws_?secret_?key|secret_?access_?key)[\"'\])]{0,3}\s{0,5}[:=,]\s{0,5}[\"']?"
        r"(?P<secret>[A-Za-z0-9/+]{40})(?![A-Za-z0-9/+=])",
    ),
    _kind("AWS access key", "akia asia", r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b"),
    _kind("Google API key", "aiza", r"\bAIza[0-9A-Za-z_-]{35}\b"),
    _kind("Google OAuth token", "ya29.", r"\bya29\.[0-9A-Za-z_-]{20,1000}"),
    _kind(
        "GitHub token",
        "ghp_ gho_ ghu_ ghs_ ghr_ github_pat_",
        r"\b(?:gh[pousr]_[A-Za-z0-9]{30,255}|github_pat_[A-Za-z0-9_]{30,255})",
    ),
    _kind("GitLab token", "glpat-", r"\bglpat-[A-Za-z0-9_-]{20,100}"),
    _kind("Hugging Face token", "hf_", r"\bhf_[A-Za-z0-9]{30,100}\b"),
    _kind("Slack token", "xox", r"\bxox[abeoprs]-[A-Za-z0-9-]{10,200}"),
    _kind("PyPI token", "pypi-", r"\bpypi-[A-Za-z0-9_-]{50,300}"),
    _kind("npm token", "npm_", r"\bnpm_[A-Za-z0-9]{36}\b"),
    _kind("Databricks token", "dapi", r"\bdapi[0-9a-f]{32}\b"),
    _kind("API key", "sk-", r"\bsk-(?=[A-Za-z_-]{0,60}[0-9])[A-Za-z0-9_-]{20,200}"),
    _kind(
        "JSON web token",
        "eyj",
        r"\beyJ[A-Za-z0-9_-]{10,1000}\.eyJ[A-Za-z0-9_-]{10,2000}\.[A-Za-z0-9_-]{10,1000}",
    ),
    _kind(
        "bearer token",
        "bearer",
        r"(?i)\bauthorization\"?\s?[:=]\s?\"?Bearer (?P<secret>[A-Za-z0-9._~+/=-]{16,2000})",
    ),
    _kind(
        "password in an address",
        "://",
        r"\b[a-z][a-z0-9+.-]{1,20}://[^\s:/@\"'<>{}$*]{0,100}:(?P<secret>[^\s/@\"'<>{}$*]{3,200})@",
    ),
    _kind(
        "password",
        "password= pwd= passwd=",
        r"(?i)\b(?:password|passwd|pwd)=(?P<secret>[^\s;&\"'<>{}$*\\]{6,200})",
    ),
    _kind(
        "secret in an assignment",  # to a name that says so, of what nobody would choose as a word
        "secret token key password passwd",
        r"(?i:(?:[_-]|\b)(?:secret|token|(?:api|access|secret)_?key|passw(?:or)?d))"
        r"[\"'\])]{0,3}\s{0,3}[:=]\s{0,3}(?P<quote>[\"'])"
        r"(?=[A-Z0-9+/_=.-]{0,60}[a-z])(?=[A-Za-z+/_=.-]{0,60}[0-9])"
        r"(?=[a-z0-9+/_=.-]{0,60}[A-Z])(?P<secret>[A-Za-z0-9+/_=.-]{20,200})(?P=quote)",
    ),
)


def find_secrets(text: str) -> Iterator[Match]:
    """All that look like secrets; where two overlap, the first kind counts."""
    lower = text.lower()
    taken: list[tuple[int, int]] = []  # sorted, and none overlaps another
    for kind in KINDS:
        if not any(mark in lower for mark in kind.marks):
            continue
        group = "secret" if "secret" in kind.regex.groupindex else 0
        for found in kind.regex.finditer(text):
            start, end = found.span(group)
            around = text[max(0, start - 100) : end]
            if kind.name == "private key" and not holds_private_key(around.encode()):
                continue
            at = bisect(taken, (start, end))
            is_free = (at == 0 or taken[at - 1][1] <= start) and (
                at == len(taken) or taken[at][0] >= end
            )
            if is_free:
                taken.insert(at, (start, end))
                yield Match(kind.name, start, end)


def is_secret_variable(name: str, value: str) -> bool:
    """Whether the value of a variable must not be shown: by its name, or by how it looks. What
    only refers to a variable of somebody's environment is no secret."""
    if _PLAIN_VALUE.fullmatch(value):
        return False
    if next(find_secrets(value), None) is not None:
        return True
    is_named = _NAME.search(name) is not None or _JOINED.search(name) is not None
    return is_named and _PLAIN_NAME.search(name) is None and not _is_of_the_system(name, value)


def _is_of_the_system(name: str, value: str) -> bool:
    """What shells and desktops set, and paths of this machine, whatever their variables' names."""
    if name in _OF_THE_SYSTEM or (name == "GPG_KEY" and _FINGERPRINT.fullmatch(value)):
        return True
    paths = [path for path in value.split(os.pathsep) if path]
    return bool(paths) and all(path.startswith("/") and os.path.lexists(path) for path in paths)


def secret_argument(words: Sequence[str]) -> str | None:
    """What the first secret in a command is: by how it looks, or as the value of an option whose
    name says so, in one word or in two."""
    for word, following in zip(words, (*words[1:], ""), strict=True):
        found = next(find_secrets(word), None)
        if found is not None:
            return found.kind
        option, has_value, value = word.partition("=")
        if not has_value and not following.startswith("-"):
            value = following
        if _OPTION.fullmatch(option) and not _OF_TEXT.fullmatch(option):
            is_plain = len(value) < _SHORTEST_ARGUMENT or _NUMBER.fullmatch(value) is not None
            if not is_plain and is_secret_variable("password", value):
                return f"the value of {option}"
    return None


def exposed_tokens(content: bytes) -> Iterator[tuple[int, str]]:
    """Lines of a source file, and which tokens or keys they have. Passwords are left out: in code
    they are most often examples. So are files that are no text, and large ones, which are data."""
    if len(content) > LARGEST_SOURCE or b"\0" in content:
        return
    text = content.decode("latin-1")
    for match in find_secrets(text):
        if not match.kind.startswith("password") and not is_placeholder(match.text(text)):
            yield text.count("\n", 0, match.start) + 1, match.kind


def is_placeholder(text: str) -> bool:
    """Whether a match is only what a guide has in the place of a secret."""
    return text.lower() in _PLACEHOLDERS or len(set(text)) < 3 or text == _ELLIPSIS


def holds_private_key(content: bytes) -> bool:
    """Whether there is a private key anywhere in a file: its first line at the beginning of a line,
    or inside another text, such as JSON, with a body that follows."""
    if content[:2] in (b"\xff\xfe", b"\xfe\xff"):  # UTF-16, as some shells write it
        content = content[2:].replace(b"\0", b"")
    at = content.find(b"PRIVATE KEY")
    while at >= 0:
        begin = _BEGIN_BYTES.search(content, max(0, at - 100), at + 40)
        if begin is not None:
            before = content[max(0, begin.start() - 82) : begin.start()]
            is_first = begin.start() == 0 or _FIRST_ON_LINE.search(before) is not None
            if is_first or re.search(_KEY_BODY, content[begin.end() : begin.end() + 400]):
                return True
        at = content.find(b"PRIVATE KEY", at + 1)
    return False


# Secret variables of a job, which stand in no record.
#
# What refers to a variable of somebody's environment (`${HF_TOKEN}`) is recorded as it is written:
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
