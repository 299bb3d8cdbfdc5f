"""Command lines of Edgeloop, checked without being run."""

from __future__ import annotations

import re
import shlex

import click

from edgeloop.cli.app import app
from edgeloop.errors import EdgeloopError

_ENDS = {"&&", "||", "|", ";", "&", ">", ">>", "<", "2>&1"}
_VARIABLE = re.compile(r"[A-Z_]+=\S*")


def calls_of(line: str) -> list[list[str]]:
    """The calls of `edgeloop` in a line for a shell: the words after the name of each."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars="&|;<>")
    lexer.whitespace_split = True
    calls: list[list[str]] = []
    words: list[str] = []
    for word in [*lexer, ";"]:
        if word in _ENDS:
            while words and _VARIABLE.fullmatch(words[0]):
                del words[0]
            if words[:1] == ["edgeloop"]:
                calls.append(words[1:])
            words = []
        else:
            words.append(word)
    return calls


def complaint(words: list[str], is_whole: bool = True) -> str:
    """What click says against a call: "" if nothing. Files need not exist, and a call in the middle
    of a sentence need not be whole."""
    command: click.Command = app
    # A command keeps the help option of the first context it gets: it must be the program's.
    parent = click.Context(app, info_name="edgeloop", **app.context_settings)
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        found = command.get_command(parent, words[0])
        if found is None and command.params:
            break
        if found is None:
            return f"there is no command {words[0]!r}"
        command, words = found, words[1:]
        parent = click.Context(command, parent=parent, info_name=command.name)
    if isinstance(command, click.Group) and not command.params:
        does_something = words or command.invoke_without_command or not is_whole
        return "" if does_something else "a group of commands does nothing by itself"
    try:
        command.make_context(command.name, list(words), parent=parent.parent)
    except click.MissingParameter as error:
        return error.format_message() if is_whole else ""
    except click.BadParameter as error:
        is_file = error.param is not None and isinstance(error.param.type, click.Path)
        return "" if is_file else error.format_message()
    except click.UsageError as error:
        return error.format_message()
    except (click.exceptions.Exit, EdgeloopError):  # of a file that is read with the options
        return ""
    return ""
