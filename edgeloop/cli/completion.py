"""completion: commands and options by the Tab key, in bash, zsh and fish."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import click

from edgeloop.cli.app import app, json_option
from edgeloop.cli.terminal import print_json

PROGRAM = "edgeloop"
SHELLS = ("bash", "zsh", "fish")
_VARIABLE = "_EDGELOOP_COMPLETE"  # click's, by which the shell asks the program
_MARK = "# edgeloop completion"
_ZSH_FIRST = "(( $+functions[compdef] )) || { autoload -Uz compinit && compinit; }\n"


@dataclass(frozen=True)
class _ShellFiles:
    """Where a shell reads its completion: `script`, named by a line in `start` unless the shell
    looks there by itself."""

    script: Path
    start: Path | None = None


@click.group()
def completion() -> None:
    """Complete commands with the Tab key.

    For bash, zsh and fish.

    Example: edgeloop completion install
    """


@completion.command()
@click.option(
    "--shell",
    type=click.Choice(SHELLS),
    help="The shell  [default: that of $SHELL]",
)
@json_option
def install(shell: str | None, as_json: bool) -> None:
    """Install completion for your shell.

    Writes a script below ~/.config and adds one line to ~/.bashrc or ~/.zshrc that reads it; fish
    needs no line. Run again after an update of Edgeloop: nothing is added twice.

    Example: edgeloop completion install --shell zsh
    """
    from edgeloop._util.files import write_atomic

    chosen = shell or _login_shell()
    files = _files_of(chosen)
    script = _script(chosen)
    is_new = not files.script.exists() or files.script.read_text() != script
    if is_new:
        files.script.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(files.script, script)
    is_added = files.start is not None and _added(files.start, files.script)
    if as_json:
        start = str(files.start) if files.start else ""
        about = {"shell": chosen, "script": str(files.script), "start": start}
        print_json([{**about, "is_written": is_new, "is_added": is_added}])
        return
    click.echo(f"{files.script} {'written' if is_new else 'is up to date'}")
    if files.start is not None:
        click.echo(f"{files.start} {'reads it now' if is_added else 'reads it already'}")
    click.echo(f"Open a new {chosen} to use it.")


@completion.command()
@click.argument("shell", type=click.Choice(SHELLS))
@json_option
def show(shell: str, as_json: bool) -> None:
    """Print the completion script of a shell.

    For those who keep such files elsewhere, for example in an image.

    Example: edgeloop completion show bash > /etc/bash_completion.d/edgeloop
    """
    script = _script(shell)
    if as_json:
        print_json([{"shell": shell, "script": script}])
    else:
        click.echo(script, nl=False)


COMMANDS = (completion,)


def _login_shell() -> str:
    from edgeloop.errors import BadInput
    from edgeloop.settings import login_shell

    name = login_shell()
    if name not in SHELLS:
        told = f"$SHELL is {name!r}" if name else "$SHELL is not set"
        reason = f"{told}, and there is completion for bash, zsh and fish: name one with --shell"
        raise BadInput(reason=reason)
    return name


def _files_of(shell: str) -> _ShellFiles:
    from edgeloop.settings import config_folder, shell_start_file

    if shell == "fish":
        return _ShellFiles(config_folder() / "fish/completions" / f"{PROGRAM}.fish")
    script = config_folder() / PROGRAM / f"completion.{shell}"
    return _ShellFiles(script, shell_start_file(shell))


def _script(shell: str) -> str:
    from click.shell_completion import get_completion_class

    completion = get_completion_class(shell)
    assert completion is not None
    source = completion(app, {}, PROGRAM, _VARIABLE).source().strip() + "\n"
    return _ZSH_FIRST + source if shell == "zsh" else source


def _added(start: Path, script: Path) -> bool:
    """Appends, so that a start file that is a link into a folder of dotfiles stays one."""
    import shlex

    name = shlex.quote(str(script))
    line = f"[ -r {name} ] && . {name}  {_MARK}"
    before = start.read_text(errors="surrogateescape") if start.exists() else ""
    if line in before.splitlines():
        return False
    gap = "" if not before or before.endswith("\n") else "\n"
    start.parent.mkdir(parents=True, exist_ok=True)
    with start.open("a", encoding="utf-8") as file:
        file.write(f"{gap}{line}\n")
    return True
