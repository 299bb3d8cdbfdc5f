"""Secrets out of texts: the last line of defence at the edge, behind code that never shows them."""

from __future__ import annotations

import re

_SECRETS = (
    re.compile(r"(?i)\b(AccountKey|SharedAccessSignature|password|sig)=[^;&\s'\"]+"),
    re.compile(r"(?P<keep>\w+://[^:/@\s]*):\S+@"),
)


def redact(text: str) -> str:
    text = _SECRETS[0].sub(lambda match: f"{match[1]}=***", text)
    return _SECRETS[1].sub(lambda match: f"{match['keep']}:***@", text)
