"""The portal's token and certificate: given, or made once and kept where only their owner reads.

Neither ever stands in the arguments of a process, which every user of a machine can list; not even
in those of the browser that `--open` starts: it opens a private file that leads to the portal.
"""

from __future__ import annotations

import contextlib
import hashlib
import html
import os
import secrets
import shutil
import ssl
import stat
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from edgeloop._util.system import O_CLOEXEC, O_NOFOLLOW, O_NONBLOCK, has_users, is_own
from edgeloop.errors import BadInput, LocalFileError
from edgeloop.settings import state_folder

AUTO = "auto"
SHORTEST_TOKEN = 16
_LONGEST_FILE = 4_096
_OPENSSL_S = 60.0
_RENEW_S = 7 * 86_400


@dataclass(frozen=True)
class OwnToken:
    """`file` is None if it could not be kept: the next portal then has another one."""

    text: str
    file: Path | None


def own_token(renew: bool = False, folder: Path | None = None) -> OwnToken:
    """The token of this user's portals, made with the first of them or if `renew`; kept in the
    state folder, unless another one is given."""
    file = _folder(folder) / "token"
    made = secrets.token_urlsafe(24)
    try:
        if not renew and (stored := _private_text(file)):
            return OwnToken(stored, file)
        _write_private(file, made.encode(), replace=renew or file.exists())
        return OwnToken(_private_text(file) or made, file)
    except OSError:
        return OwnToken(made, None)


def token_in(file: Path) -> str:
    """The content of a file, without spaces and newlines around it."""
    try:
        # A pipe must not hold anything up.
        handle = os.open(file, os.O_RDONLY | O_CLOEXEC | O_NONBLOCK)
        with os.fdopen(handle, "rb") as opened:
            if not stat.S_ISREG(os.fstat(opened.fileno()).st_mode):
                raise LocalFileError(path=file, reason="is not a file")
            content = opened.read(_LONGEST_FILE + 1)
        text = content.decode().strip()
    except OSError as error:
        reason = f"cannot be read: {error.strerror}"
        raise LocalFileError(path=file, reason=reason) from None
    except UnicodeDecodeError:
        raise LocalFileError(path=file, reason="is not a text") from None
    if len(content) > _LONGEST_FILE:
        raise LocalFileError(path=file, reason="is too long for a token")
    return text


def opening_page(link: str, folder: Path | None = None) -> str:
    """The address of a private file that leads to `link`; the link itself if none can be made."""
    file = _folder(folder) / "open.html"
    page = (
        '<!doctype html><meta charset="utf-8"><title>Edgeloop</title>'
        f'<meta http-equiv="refresh" content="0; url={html.escape(link)}">'
        f'<a href="{html.escape(link)}">Open the portal</a>\n'
    )
    try:
        _write_private(file, page.encode(), replace=True)
    except OSError:
        return link
    return file.as_uri()


def check_certificate(certificate: Path, key: Path) -> None:
    """Raise LocalFileError for a certificate or a key that a server cannot use."""

    def no_passphrase() -> str:
        raise LocalFileError(
            path=key, reason="is encrypted: decrypt it with 'openssl pkey -in FILE -out PLAIN'"
        )

    for file in (certificate, key):
        if not file.is_file():
            raise LocalFileError(path=file, reason="is not a file, and TLS needs it")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(certificate, key, no_passphrase)
    except ssl.SSLError as error:
        is_other = "KEY_VALUES_MISMATCH" in str(error)
        why = f"is not the key of {certificate}" if is_other else "and its certificate are not PEM"
        raise LocalFileError(path=key, reason=why) from None
    except OSError as error:
        raise LocalFileError(path=key, reason=f"cannot be read: {error.strerror}") from None


def own_certificate(names: Sequence[str], folder: Path | None = None) -> tuple[Path, Path]:
    """A certificate that this machine signed itself, and its key, kept until it expires."""
    folder = _folder(folder)
    mark = hashlib.sha256("\n".join(names).encode()).hexdigest()[:12]
    certificate, key = folder / f"tls-{mark}.pem", folder / f"tls-{mark}.key"
    program = shutil.which("openssl")
    if program is None:
        raise BadInput(
            reason="this machine has no openssl to make a certificate with: install it, or give "
            "one with --tls-cert and --tls-key"
        )
    is_private = bool(_private_text(key)) and certificate.is_file()
    checks = ("x509", "-checkend", str(_RENEW_S), "-noout", "-in", str(certificate))
    if is_private and _ran(program, *checks):
        return certificate, key
    _private_folder(folder)
    with contextlib.suppress(FileNotFoundError):
        key.unlink()
    request = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]
    request += ["-nodes", "-days", "397", "-subj", "/CN=Edgeloop portal"]
    request += ["-addext", f"subjectAltName={','.join(map(_alternative, names))}"]
    request += ["-addext", "basicConstraints=critical,CA:FALSE"]
    request += ["-keyout", str(key), "-out", str(certificate)]
    made = _ran(program, *request)
    if not made:
        raise BadInput(reason="openssl made no certificate: give one with --tls-cert and --tls-key")
    key.chmod(0o600)
    return certificate, key


def fingerprint(certificate: Path) -> str:
    """SHA-256, as browsers show it."""
    content = ssl.PEM_cert_to_DER_cert(certificate.read_text(encoding="ascii"))
    return hashlib.sha256(content).digest().hex(":").upper()


def _alternative(name: str) -> str:
    is_address = ":" in name or name.replace(".", "").isdigit()
    return f"IP:{name}" if is_address else f"DNS:{name}"


def _ran(*command: str) -> bool:
    done = subprocess.run(  # noqa: S603 - a list of arguments, no shell
        command,
        capture_output=True,
        timeout=_OPENSSL_S,
        check=False,
        stdin=subprocess.DEVNULL,
        umask=0o077,
    )
    return done.returncode == 0


def _folder(folder: Path | None) -> Path:
    return (folder or state_folder()) / "portal"


def _private_folder(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    if is_own(folder.stat()):
        folder.chmod(0o700)


def _private_text(file: Path) -> str:
    """Empty unless it is a file that only this user can read."""
    try:
        handle = os.open(file, os.O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK)
    except OSError:
        return ""
    with os.fdopen(handle, "rb") as opened:
        about = os.fstat(opened.fileno())
        is_ours = stat.S_ISREG(about.st_mode) and is_own(about)
        if not is_ours or (has_users() and about.st_mode & 0o077):
            return ""
        return opened.read(_LONGEST_FILE).decode("ascii", "replace").strip()


def _write_private(file: Path, content: bytes, replace: bool) -> None:
    """Whole from the beginning. Without `replace`, one that is there already stays."""
    _private_folder(file.parent)
    temporary = file.with_name(f".{file.name}.{secrets.token_hex(8)}.part")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | O_CLOEXEC | O_NOFOLLOW
    handle = os.open(temporary, flags, 0o600)
    try:
        with os.fdopen(handle, "wb") as opened:
            opened.write(content)
        if replace:
            temporary.replace(file)
        else:
            with contextlib.suppress(FileExistsError):
                os.link(temporary, file)
    finally:
        temporary.unlink(missing_ok=True)
