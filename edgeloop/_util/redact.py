"""What a secret looks like, and texts without secrets.

`find_secrets` is exact: a false alarm in a scan or about a job's code would be ignored next time.
`redact` adds whatever follows a telling name, such as `password=`. It is the last line of defence
at the edge, behind code that never shows secrets.

Texts may be logs of strangers, so every search costs time in proportion to the text: a pattern
starts only where a previous attempt cannot have been, or looks at a bounded number of characters.
"""

from __future__ import annotations

import base64
import json
import os
import re
from bisect import bisect
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from urllib.parse import quote, quote_plus

# Of a part of a text: how much before and after it decides whether it holds a secret.
CONTEXT = 4_200

_LONGEST_PASSWORD = 4_000
_MASK = "***"
_QUOTED = r"""(?:'(?:[^'\\\n]|\\.)*|"(?:[^"\\\n]|\\.)*)"""
_VALUE = rf"""(?:{_QUOTED}|[^;&\s'"]+)"""
_NAME = (
    r"(?:(?:account|shared_?access|secret_?access|access|secret|api|private|master|client|storage)"
    r"_?key|shared_?access_?signature|signature|sig|pass(?:word|wd|phrase)|pwd|(?:client_?)?secret"
    r"|(?:access_?|refresh_?|id_?|auth_?|sas_?|session_?)?token)"
)
_NAMED = (
    # AccountKey=…, ?sig=…, password='…', AWS_SECRET_ACCESS_KEY=…, and "password": "…" of JSON
    re.compile(
        rf"(?i)(?<![a-z0-9])(?=[acimprst]){_NAME}"
        rf"(?:=(?P<secret>{_VALUE})|\\?[\"']\s{{0,4}}:\s{{0,4}}\\?(?P<quoted>{_QUOTED}))"
    ),
    # X-Api-Key: …
    re.compile(
        r"(?i)(?<![\w-])x-[a-z0-9-]{0,30}(?:key|token)[\"']?\s{0,4}:\s{0,4}[\"']?(?P<secret>[^\s\"']+)"
    ),
    # Authorization: SharedKey account:…
    re.compile(r"\bSharedKey(?:Lite)?\s{1,4}[^\s:]{1,100}:(?P<secret>[\w+/=-]+)"),
    re.compile(r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----(?P<secret>(?:[A-Za-z0-9+/=\s]|\\[nr])+)"),
)
# The key of a storage account without its name. A scan would take every SHA-512 for one.
_ACCOUNT_KEY = re.compile(r"(?<![\w+/=])(?P<secret>[A-Za-z0-9+/]{86}==)(?![\w+/=])")
_CREDENTIALS = re.compile(r"(?i)\b(?:bearer|basic)\s{1,4}(?P<secret>[\w.~+/=-]{8,})")
_USER = re.compile(r"(?<=\w)://[^:/@\s]*(?=:)")
_RUN = re.compile(r"\S*")
_REFERENCE = re.compile(r"""["']?(?:\$\{?\w+\}?|\*{3,}|<[\w -]*>|None|null|)["']?""")
_ALWAYS = re.compile(r"(?i)(?:AccountKey|SharedAccessSignature|password|sig)=")


def redact(text: str, start: int = 0, end: int | None = None) -> str:
    """The text, or its part from `start` to `end`, with `***` in place of each secret. What stands
    around the part is considered: the second half of a password is a secret, too."""
    end = len(text) if end is None else end
    parts, at, is_masked = [], start, False
    for first, last in sorted(_spans(text)):
        if last <= at or first >= end:
            continue
        if first > at or not is_masked:
            parts += [text[at : max(first, at)], _MASK]
        at, is_masked = min(last, end), True
    return "".join((*parts, text[at:end]))


def _spans(text: str) -> Iterator[tuple[int, int]]:
    for pattern in _NAMED:
        for match in pattern.finditer(text):
            name = match.lastgroup or ""
            if not _REFERENCE.fullmatch(match[name]) or _ALWAYS.match(match[0]):
                yield _inside(text, *match.span(name))
    for match in _ACCOUNT_KEY.finditer(text):
        yield match.span("secret")
    for secret in find_secrets(text):
        yield secret.start, secret.end
    for match in _CREDENTIALS.finditer(text):
        if is_random(match["secret"]):
            yield match.span("secret")
    if "://" in text and "@" in text:
        yield from _passwords(text)


def _inside(text: str, first: int, last: int) -> tuple[int, int]:
    """Without the quote that opens the value, which stays."""
    return (first + 1, last) if text[first] in "'\"" else (first, last)


def _passwords(text: str) -> Iterator[tuple[int, int]]:
    """Of addresses. A password may contain `@` and `/`, so it ends at the last `@` that is near
    enough, before the next space."""
    space = done = 0
    for user in _USER.finditer(text):
        begin = user.end() + 1
        if begin < done:
            continue
        if begin >= space:
            space = _RUN.match(text, begin).end()  # type: ignore[union-attr]
        end = text.rfind("@", begin + 1, min(space, begin + _LONGEST_PASSWORD + 1))
        if end >= 0:
            done = end
            yield begin, end


# Secrets by how they look, wherever they are: the texts of keys, tokens, signatures and passwords,
# and the names of variables that hold them.
#
# Every expression is applied from a literal word that it begins with or near, has bounded repeats
# or starts only where a word does, so that a hostile text costs no more than a plain one.


LONGEST = 4096  # of one match: a text may be searched in pieces that overlap by this much

_VARIABLE_NAME = re.compile(
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
_EMULATOR_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1"  # of every Azurite, as its documentation says
_ELLIPSIS = "…".encode().decode("latin-1")  # as files are read

_BEGIN = r"-----BEGIN (?:[A-Z0-9]{1,20} ){0,3}PRIVATE KEY(?: BLOCK)?-----"
_KEY_BODY = rb"[A-Za-z0-9+/=]{24}"
_BEGIN_BYTES = re.compile(_BEGIN.encode())
_FIRST_ON_LINE = re.compile(rb"(?:\A|\n)[ \t\r]{0,80}\Z")


@dataclass(frozen=True)
class SecretKind:
    """One kind of secret: what a person reads, and what its text is. The group `secret`, if there
    is one, is the part to hide."""

    name: str
    marks: str  # a text without any of these words, in lower case, has none
    regex: str


@dataclass(frozen=True)
class Match:
    """A secret in a text: what it is, and from where to where."""

    kind: str
    start: int
    end: int

    def text(self, whole: str) -> str:
        return whole[self.start : self.end]


KINDS = (
    SecretKind("private key", "private", rf"(?P<secret>{_BEGIN}[^-]{{0,4000}})"),
    SecretKind("age key", "age-secret-key-1", r"AGE-SECRET-KEY-1[A-Z0-9]{40,80}"),
    SecretKind(
        "storage account key",
        "accountkey sharedaccesskey account_key storage_key storagekey",
        r"(?i)(?:\b(?:AccountKey|SharedAccessKey)\s?=\s?|(?:account|storage)_?key[\"'\])]{0,3}\s{0,3}"
        r"[:=]\s{0,3}[\"']?(?=[A-Za-z0-9+/]{86}==))(?P<secret>[A-Za-z0-9+/]{20,120}={0,2})",
    ),
    SecretKind(
        "shared access signature",
        "sig=",
        r"(?i)(?:[?&;]|\b|\\u0026)sig=(?P<secret>[A-Za-z0-9%+/_-]{20,200}={0,2})",
    ),
    SecretKind(
        "signed S3 or Google address",
        "signature=",
        r"(?i)\bX-(?:Amz|Goog)-Signature=(?P<secret>[0-9a-f]{32,1024})",
    ),
    SecretKind(
        "session token",
        "x-amz-security-token=",
        r"(?i)\bX-Amz-Security-Token=(?P<secret>[A-Za-z0-9%+/=_-]{20,2000})",
    ),
    SecretKind(
        "AWS secret key",
        "secret_access_key secretaccesskey secret_key secretkey",
        r"(?i:aws_?secret_?key|secret_?access_?key)[\"'\])]{0,3}\s{0,5}[:=,]\s{0,5}[\"']?"
        r"(?P<secret>[A-Za-z0-9/+]{40})(?![A-Za-z0-9/+=])",
    ),
    SecretKind("AWS access key", "akia asia", r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b"),
    SecretKind("Google API key", "aiza", r"\bAIza[0-9A-Za-z_-]{35}\b"),
    SecretKind("Google OAuth token", "ya29.", r"\bya29\.[0-9A-Za-z_-]{20,1000}"),
    SecretKind(
        "GitHub token",
        "ghp_ gho_ ghu_ ghs_ ghr_ github_pat_",
        r"(?<!\w)(?:gh[pousr]_|github_pat_)[A-Za-z0-9_]{20,255}",
    ),
    SecretKind("GitLab token", "glpat-", r"\bglpat-[A-Za-z0-9_-]{20,100}"),
    SecretKind("Hugging Face token", "hf_", r"\bhf_[A-Za-z0-9]{30,100}\b"),
    SecretKind("Slack token", "xox", r"\bxox[abeoprs]-[A-Za-z0-9-]{10,200}"),
    SecretKind("PyPI token", "pypi-", r"\bpypi-[A-Za-z0-9_-]{50,300}"),
    SecretKind("npm token", "npm_", r"\bnpm_[A-Za-z0-9]{36}\b"),
    SecretKind("Databricks token", "dapi", r"\bdapi[0-9a-f]{32}\b"),
    SecretKind(
        "API key",  # and no class of a style sheet: those have words in lower case
        "sk-",
        r"(?<![\w-])sk-(?=[A-Za-z_-]{0,60}[0-9])"
        r"(?:(?=[a-z0-9_-]{0,60}[A-Z])[A-Za-z0-9_-]{20,200}|[a-z0-9]{32,48}(?![\w-]))",
    ),
    SecretKind(
        "API key in an assignment",
        "api_key api-key apikey api_token api-token apitoken secret_key secretkey access_token "
        "accesstoken auth_token authtoken wandb",
        r"(?i)(?:(?:api|secret|access|auth)[_-]?(?:key|token)[\"'\])]{0,3}"
        r"(?:\s{0,3}[:=,]\s{0,3}|\s{1,3})|\bwandb[. ]login[( ]\s{0,3}(?:(?:--)?[a-z]{3,10}[= ])?)"
        r"[\"']?(?P<secret>[0-9a-f]{32,64})(?![0-9A-Za-z])",
    ),
    SecretKind(
        "JSON web token",
        "eyj",
        r"(?<![\w-])eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{5,}\.[A-Za-z0-9_-]*",
    ),
    SecretKind(
        "bearer token",
        "bearer",
        r"(?i)\bauthorization\"?\s?[:=]\s?\"?Bearer (?P<secret>[A-Za-z0-9._~+/=-]{16,2000})",
    ),
    SecretKind(
        "password in an address",
        "://",
        r"\b[a-z][a-z0-9+.-]{1,20}://[^\s:/@\"'<>{}$*]{0,100}:(?P<secret>[^\s/@\"'<>{}$*]{3,200})@",
    ),
    SecretKind(
        "password",
        "password= pwd= passwd=",
        r"(?i)\b(?:password|passwd|pwd)=(?P<secret>[^\s;&\"'<>{}$*\\]{6,200})",
    ),
    SecretKind(
        "secret in an assignment",  # to a name that says so, of a text that is no word
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
        if not any(mark in lower for mark in kind.marks.split()):
            continue
        group = "secret" if "(?P<secret>" in kind.regex else 0
        for match in re.finditer(kind.regex, text):
            start, end = match.span(group)
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
    """Whether the value of a variable must not be shown: by its name, or by how it looks. A
    value that only refers to another variable is no secret."""
    if _PLAIN_VALUE.fullmatch(value):
        return False
    if next(find_secrets(value), None) is not None:
        return True
    is_named = _VARIABLE_NAME.search(name) is not None or _JOINED.search(name) is not None
    return is_named and _PLAIN_NAME.search(name) is None and not _is_of_the_system(name, value)


def _is_of_the_system(name: str, value: str) -> bool:
    """What shells and desktops set, and paths of this machine, whatever their variables' names."""
    if name in _OF_THE_SYSTEM or (name == "GPG_KEY" and _FINGERPRINT.fullmatch(value)):
        return True
    paths = [path for path in value.split(os.pathsep) if path]
    return bool(paths) and all(path.startswith("/") and os.path.lexists(path) for path in paths)


def is_placeholder(text: str) -> bool:
    """Whether a match is only what a guide has in the place of a secret."""
    is_public = text.endswith(("EXAMPLE", "EXAMPLEKEY")) or text.startswith(_EMULATOR_KEY)
    return is_public or text.lower() in _PLACEHOLDERS or len(set(text)) < 3 or text == _ELLIPSIS


def is_random(word: str) -> bool:
    """Rather than a word of a sentence, such as "basic authentication"."""
    is_word = word.islower() or word.isupper() or word.istitle()
    return len(word) >= 24 or not is_word or any(letter.isdigit() for letter in word)


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


# Secrets whose values are known, such as those of a job's variables: masked exactly, whatever they
# look like.


SHORTEST_MASKED = 4  # characters: shorter values are parts of ordinary words
_SHORTEST_EMBEDDED = 8  # of a password in an address, say
_SHORTEST_ENCODED = 6
_LONGEST_PATTERN = 1024  # longer values are several, one after another


class KnownSecrets:
    """Masks values wherever they appear: as they are, each line of several by itself, and in
    base64, in URLs, in JSON and as Python shows texts."""

    def __init__(self, values: Iterable[str] = ()) -> None:
        self._patterns = _patterns(tuple(values))
        self._longest = max(map(len, self._patterns), default=0)

    def mask(self, text: str) -> str:
        """The text with `***` in place of each value."""
        content = text.encode(errors="surrogatepass")  # as JSON and names of files may have them
        masked = MaskedStream().feed(content, self, is_over=True)
        return text if masked == content else masked.decode(errors="replace")

    def mask_all(self, values: Mapping[str, object]) -> dict[str, object]:
        """The same for all texts in an object of JSON."""
        return {self.mask(name): self._masked(value) for name, value in values.items()}

    def _masked(self, value: object) -> object:
        if isinstance(value, str):
            return self.mask(value)
        if isinstance(value, list):
            return [self._masked(item) for item in value]
        return self.mask_all(value) if isinstance(value, dict) else value

    def spans(self, content: bytes) -> list[tuple[int, int]]:
        """Where values are, in order; some may overlap."""
        found = []
        for pattern in self._patterns:
            at = content.find(pattern)
            while at >= 0:
                found.append((at, at + len(pattern)))
                at = content.find(pattern, at + 1)
        return sorted(found)

    def unfinished(self, content: bytes) -> int:
        """Length of the end that is the beginning of a value. No pattern has a line break."""
        last_line = content[content.rfind(b"\n") + 1 :]
        end = last_line[-(self._longest - 1) :] if self._longest > 1 else b""
        start = len(end)
        for pattern in self._patterns:
            at = end.find(pattern[:1], 0, start)
            while at >= 0:
                rest = end[at:]
                if len(rest) < len(pattern) and pattern.startswith(rest):
                    start = at
                    break
                at = end.find(pattern[:1], at + 1, start)
        return len(end) - start


class MaskedStream:
    """Bytes that arrive in parts, without the values. What may be the beginning of a value is held
    back until more arrives, so one that is split between two parts is found as well."""

    def __init__(self) -> None:
        self._held = b""
        self._covered = 0  # of what is held, bytes that belong to a value which began before it
        self._after_mask = False

    def feed(self, part: bytes, secrets: KnownSecrets, is_over: bool = False) -> bytes:
        """What can be shown; with `is_over` nothing is held back."""
        content = self._held + part
        end = len(content) - (0 if is_over else secrets.unfinished(content))
        shown: list[bytes] = []
        at, after_mask = self._covered, self._after_mask
        for first, last in secrets.spans(content):
            if first >= end or last <= at:
                continue
            if first > at or not after_mask:
                shown += [content[at : max(first, at)], _MASK.encode()]
            at, after_mask = last, True
        if at < end:
            shown.append(content[at:end])
            after_mask = False
        self._held = content[end:]
        self._covered = max(0, at - end)
        self._after_mask = after_mask
        return b"".join(shown)


def _patterns(values: tuple[str, ...]) -> tuple[bytes, ...]:
    """Each at most so long, and none with a line break."""
    forms = {form for value in values for text in _parts(value) for form in _forms(text)}
    return tuple(sorted({piece for form in forms for piece in _pieces(form)}))


def _parts(value: str) -> Iterator[str]:
    """The value, and keys and passwords in it, as in an address."""
    plain = value.strip()
    if len(plain) >= SHORTEST_MASKED:
        yield plain
        for match in find_secrets(plain):
            text = match.text(plain)
            if len(text) >= _SHORTEST_EMBEDDED and not is_placeholder(text):
                yield text


def _forms(text: str) -> Iterator[bytes]:
    for line in re.split(r"[\r\n]+", text):
        if len(line.strip()) >= SHORTEST_MASKED:
            yield line.strip().encode(errors="replace")
    for escaped in (repr(text), json.dumps(text), json.dumps(text, ensure_ascii=False)):
        yield escaped[1:-1].encode(errors="replace")
    content = text.encode(errors="replace")
    for in_url in (quote(content), quote(content, safe=""), quote_plus(content)):
        yield in_url.encode()
    yield from _in_base64(content)


def _in_base64(content: bytes) -> Iterator[bytes]:
    """At each of the three places in a group that it can begin at, as in `user:password`; only what
    does not depend on the bytes before and after it."""
    for before, dependent in ((0, 0), (1, 2), (2, 3)):
        whole = (before + len(content)) * 8 // 6
        encoded = base64.b64encode(b"\0" * before + content)[dependent:whole]
        if len(encoded) >= _SHORTEST_ENCODED:
            yield encoded
            yield encoded.translate(bytes.maketrans(b"+/", b"-_"))


def _pieces(form: bytes) -> Iterator[bytes]:
    count = -(-len(form) // _LONGEST_PATTERN)
    size = -(-len(form) // count)
    for start in range(0, len(form), size):
        yield form[start : start + size]
