"""Secrets out of texts: the last line of defence at the edge, behind code that never shows them."""

from __future__ import annotations

import re

_SECRETS = (
    re.compile(r"(?i)\b(AccountKey|SharedAccessSignature|password|sig)=[^;&\s'\"]+"),
    # Only from the beginning of a word, and not for ever: else a long line would cost its square.
    re.compile(r"\b(?P<keep>\w+://[^:/@\s]*):\S{1,4000}@"),
)


def redact(text: str) -> str:
    text = _SECRETS[0].sub(lambda match: f"{match[1]}=***", text)
    return _SECRETS[1].sub(lambda match: f"{match['keep']}:***@", text)
