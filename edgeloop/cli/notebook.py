"""notebook: all charts in JupyterLab."""

from __future__ import annotations

import subprocess
from pathlib import Path

import click

from edgeloop._util.system import python_module
from edgeloop.cli.app import NewPath
from edgeloop.cli.terminal import print_json, say_on_interrupt


@click.command()
@click.argument("file", type=NewPath(), default=Path("results.ipynb"))
@click.option("--force", is_flag=True, help="Overwrite FILE.")
@click.option("--no-open", is_flag=True, help="Write FILE and do not start JupyterLab.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs; opens nothing.")
@click.pass_context
def notebook(context: click.Context, file: Path, force: bool, no_open: bool, as_json: bool) -> None:
    """Open all charts as a notebook in JupyterLab.

    Writes FILE, results.ipynb unless given, and starts JupyterLab on this machine's loopback
    address, until Ctrl-C. A FILE that exists is opened as it is. The notebook reads the store of
    the folder it is started in; without a store it shows the results shipped with Edgeloop.
    JupyterLab comes with the extra `notebook`.

    Example: edgeloop notebook
    """
    from importlib.resources import files
    from importlib.util import find_spec

    from edgeloop.view.drawing import write_whole

    is_new = force or not file.exists()
    if is_new:
        write_whole(file, (files("edgeloop.view") / "results.ipynb").read_bytes())
    if as_json:
        print_json([{"file": str(file), "written": is_new}])
        return
    click.echo(f"{file} {'written' if is_new else 'is there already; --force writes a new one'}.")
    if no_open:
        return
    if find_spec("jupyterlab") is None:
        click.echo(
            "JupyterLab is not installed here: pip install 'edgeloop[notebook]', then "
            f"'edgeloop notebook {file}' opens it.",
            err=True,
        )
        context.exit(1)
    context.exit(_open(file))


def _open(file: Path) -> int:
    """JupyterLab has the terminal: it prints its address, and asks after Ctrl-C whether to end. It
    asks every browser for its token; --allow-root is for containers, where the user is root."""
    say_on_interrupt(f"Stopped; {file} is kept.")
    command = python_module("jupyterlab", "--ip", "127.0.0.1", "--allow-root", str(file))
    was_interrupted = False
    with subprocess.Popen(command) as process:  # noqa: S603 - words of ours and a file
        while True:
            try:
                code = process.wait()
            except KeyboardInterrupt:
                was_interrupted = True
            else:
                break
    if was_interrupted:
        raise KeyboardInterrupt
    return code


COMMANDS = (notebook,)
