"""Secrets out of texts: the last line of defence at the edge, behind code that never shows them.

Texts may be logs of strangers, so every search costs time in proportion to the text: a pattern
starts only where a previous attempt cannot have been, or looks at a bounded number of characters.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

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
_SHAPES = (
    # The key of a storage account, a JSON web token, tokens of GitHub
    re.compile(r"(?<![\w+/=])(?P<secret>[A-Za-z0-9+/]{86}==)(?![\w+/=])"),
    re.compile(r"(?<![\w-])(?P<secret>eyJ[\w-]{10,}\.[\w-]{5,}\.[\w-]*)"),
    re.compile(r"(?<!\w)(?P<secret>(?:gh[opsu]_|github_pat_)\w{20,})"),
)
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
    for pattern in _SHAPES:
        for match in pattern.finditer(text):
            yield match.span("secret")
    for match in _CREDENTIALS.finditer(text):
        if _is_random(match["secret"]):
            yield match.span("secret")
    if "://" in text and "@" in text:
        yield from _passwords(text)


def _inside(text: str, first: int, last: int) -> tuple[int, int]:
    """Without the quote that opens the value, which stays."""
    return (first + 1, last) if text[first] in "'\"" else (first, last)


def _is_random(word: str) -> bool:
    """Rather than a word of a sentence, such as "basic authentication"."""
    is_word = word.islower() or word.isupper() or word.istitle()
    return len(word) >= 24 or not is_word or any(letter.isdigit() for letter in word)


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
        found = text.rfind("@", begin + 1, min(space, begin + _LONGEST_PASSWORD + 1))
        if found >= 0:
            done = found
            yield begin, found
