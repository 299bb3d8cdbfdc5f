"""A certificate for 127.0.0.1 that its own maker signed."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from tests.peers.process import find_program


@dataclass(frozen=True)
class Certificate:
    file: Path
    key: Path

    @classmethod
    def make(cls, folder: Path, *names: str) -> Self:
        """For 127.0.0.1, and for host names (which may begin with `*.`)."""
        hosts = ["IP:127.0.0.1", *(f"DNS:{name}" for name in names)]
        made = cls(folder / "certificate.pem", folder / "key.pem")
        subprocess.run(
            [
                *(find_program("openssl"), "req", "-x509", "-newkey", "ec", "-nodes"),
                *("-pkeyopt", "ec_paramgen_curve:prime256v1", "-days", "2"),
                *("-subj", "/CN=127.0.0.1", "-addext", f"subjectAltName={','.join(hosts)}"),
                *("-addext", "basicConstraints=critical,CA:FALSE"),
                *("-keyout", str(made.key), "-out", str(made.file)),
            ],
            check=True,
            capture_output=True,
        )
        return made
