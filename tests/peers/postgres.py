"""A private PostgreSQL cluster, with fsync on as in production."""

from __future__ import annotations

import contextlib
import os
import pwd
import secrets
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

from tests.peers.ports import free_port
from tests.peers.process import MissingComponent, ServerProcess, find_program, wait_until


class Postgres(ServerProcess):
    """The superuser `postgres` needs no password; roles made by `make_role` do."""

    name = "postgres"
    graceful_signal = signal.SIGINT  # "fast": open connections are ended

    def __init__(self, max_connections: int = 200) -> None:
        self.port = free_port()
        self._max_connections = max_connections
        self._programs = _program_folder()
        self._user = _server_user()
        self._given_back: list[str] = []
        super().__init__()
        try:
            self._make_cluster()
        except BaseException:
            self.close()
            raise

    @property
    def url(self) -> str:
        return self.url_of("postgres")

    def url_of(self, database: str, user: str = "postgres", password: str | None = None) -> str:
        who = user if password is None else f"{user}:{password}"
        return f"postgresql://{who}@127.0.0.1:{self.port}/{database}"

    def make_database(self) -> str:
        name = f"test_{secrets.token_hex(6)}"
        self._execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        return name

    def drop_database(self, name: str) -> None:
        drop = sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)")
        self._execute(drop.format(sql.Identifier(name)))

    def lend_database(self) -> str:
        """An empty database: one that was given back, where there is one. Making and dropping
        databases costs more than most tests do with them."""
        return self._given_back.pop() if self._given_back else self.make_database()

    def take_back(self, name: str) -> None:
        """Empties a database, whoever is still connected to it, for the next borrower."""
        with psycopg.connect(self.url_of(name), autocommit=True, connect_timeout=5) as link:
            link.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
            with link.transaction():
                link.execute("DROP SCHEMA public CASCADE")
                link.execute("CREATE SCHEMA public AUTHORIZATION pg_database_owner")
                link.execute("GRANT USAGE ON SCHEMA public TO PUBLIC")
        self._given_back.append(name)

    def make_role(self, password: str) -> str:
        """A role that must show a password (SCRAM), with no rights beyond those of everybody."""
        name = f"role_{secrets.token_hex(6)}"
        create = sql.SQL("CREATE ROLE {} LOGIN PASSWORD {}")
        self._execute(create.format(sql.Identifier(name), sql.Literal(password)))
        return name

    def command(self) -> list[str]:
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": self.port,
            "unix_socket_directories": self.folder,
            "max_connections": self._max_connections,
            "timezone": "UTC",
        }
        options = [f"--{name}={value}" for name, value in settings.items()]
        return [str(self._programs / "postgres"), "-D", str(self._data), *options]

    def popen_options(self) -> dict[str, Any]:
        return self._user

    def is_ready(self) -> bool:
        try:
            psycopg.connect(self.url, connect_timeout=2).close()
        except psycopg.OperationalError:
            return False
        return True

    def kill(self) -> None:
        """Server processes leave the group, so they are ended one by one: as in a power cut, none
        is left that could go on writing."""
        workers = _children(self._process.pid) if self._process else []
        super().kill()
        for worker in workers:
            with contextlib.suppress(ProcessLookupError):
                os.kill(worker, signal.SIGKILL)
        wait_until(lambda: not any(map(_is_alive, workers)), 20, "PostgreSQL's processes to end")

    @property
    def _data(self) -> Path:
        return self.folder / "data"

    def _make_cluster(self) -> None:
        if self._user:
            shutil.chown(self.folder, self._user["user"], self._user["group"])
        made = subprocess.run(
            [
                *(str(self._programs / "initdb"), "-D", str(self._data), "--no-sync"),
                *("-U", "postgres", "-E", "UTF8", "--locale=C.UTF-8", "--auth=trust"),
            ],
            capture_output=True,
            text=True,
            cwd=self.folder,
            check=False,
            **self._user,
        )
        if made.returncode != 0:
            raise RuntimeError(f"initdb failed:\n{made.stdout}\n{made.stderr}")
        access = "local all all trust\nhost all postgres 127.0.0.1/32 trust\n"
        access += "host all all 127.0.0.1/32 scram-sha-256\n"
        (self._data / "pg_hba.conf").write_text(access)

    def _execute(self, statement: sql.Composed) -> None:
        with psycopg.connect(self.url, autocommit=True, connect_timeout=5) as link:
            link.execute(statement)


def _program_folder() -> Path:
    versions = Path("/usr/lib/postgresql").glob("*/bin/initdb")
    newest = sorted(versions, key=lambda path: int(path.parts[-3]), reverse=True)
    folder = Path(find_program("initdb", *newest)).resolve().parent
    if not (folder / "postgres").is_file():
        raise MissingComponent("postgres")
    return folder


def _server_user() -> dict[str, Any]:
    """PostgreSQL refuses to run as root."""
    if os.geteuid() != 0:
        return {}
    try:
        account = pwd.getpwnam("postgres")
    except KeyError:
        raise MissingComponent("the user 'postgres' of PostgreSQL") from None
    return {"user": account.pw_name, "group": account.pw_gid, "extra_groups": []}


def _children(pid: int) -> list[int]:
    file = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(child) for child in file.read_text().split()] if file.exists() else []


def _is_alive(pid: int) -> bool:
    """A process that is dead and merely not waited for yet is no longer alive."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in ("Z", "X")
