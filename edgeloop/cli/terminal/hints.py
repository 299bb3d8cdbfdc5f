"""What to say where nothing was found: an empty listing is no error, and most often the models are
in another experiment, or a tag or a name is misspelt."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from edgeloop.errors import NoSuchModel
    from edgeloop.workspace import Workspace

_MOST_NAMES = 5
_MOST_EXPERIMENTS = 20


def say_empty(text: str, as_json: bool = False) -> None:
    """Programs get their empty array on stdout, and people this."""
    click.echo(text, err=as_json)


def say_if_none(rows: Sequence[object], workspace: Workspace, tag: str | None = None) -> None:
    """On stderr, for commands that go on with nothing."""
    if not rows:
        say_empty(no_models(workspace, tag), as_json=True)


def no_models(workspace: Workspace, tag: str | None = None, is_filtered: bool = False) -> str:
    """Why a listing of models is empty, and what to do: `No models in experiment 'default'; 16 in
    'laptop'.` `is_filtered`: by something else than the tag."""
    from edgeloop.cli.output import shown
    from edgeloop.workspace import models_elsewhere

    experiment = workspace.experiment
    if any(True for _ in workspace.store.models(experiment).query(limit=1)):
        return _no_match(workspace, tag, is_filtered)
    place = shown(workspace.store.description)
    if not _is_begun(workspace):
        return f"There is no store at {place} yet. Next: edgeloop upload MODEL.onnx"
    others = models_elsewhere(workspace)
    if not others:
        where = f"experiment '{experiment}' ({place})"
        return f"No models yet in {where}. Next: edgeloop upload MODEL.onnx"
    near = get_close_matches(experiment, others, n=1)
    if near:
        count = f"{others[near[0]]} models" if others[near[0]] != "1" else "1 model"
        return f"No models in experiment '{experiment}'; did you mean '{near[0]}' ({count})?"
    return f"No models in experiment '{experiment}'; {_listed(others)}. Choose with --experiment."


@contextlib.contextmanager
def hinting(workspace: Workspace) -> Iterator[None]:
    """A model that was named and is not there: the nearest name, or where it is instead."""
    from edgeloop.errors import NoSuchModel, StoreError

    try:
        yield
    except NoSuchModel as error:
        hint = ""
        with contextlib.suppress(StoreError):
            hint = _instead(workspace, error)
        if not hint or error.fields["experiment"] != workspace.experiment:
            raise
        fields = {name: error.fields[name] for name in ("pattern", "experiment")}
        raise NoSuchModel(**fields, hint=hint) from None


def _instead(workspace: Workspace, error: NoSuchModel) -> str:
    from edgeloop.models import can_be_key, is_pattern
    from edgeloop.workspace import models_elsewhere

    name = str(error.fields["pattern"])
    names = [row.key for row in workspace.store.models(workspace.experiment).query()]
    if near := get_close_matches(name, names, n=1):
        return f"; did you mean {near[0]!r}?"
    others = models_elsewhere(workspace)
    if not is_pattern(name) and can_be_key(name):
        for other in list(others)[:_MOST_EXPERIMENTS]:
            if workspace.store.models(other).get(name) is not None:
                return f"; there is one in {other!r}: choose it with --experiment {other}."
    if not names and others:
        return f", which has no models; {_listed(others)}."
    return ""


def _no_match(workspace: Workspace, tag: str | None, is_filtered: bool) -> str:
    """There are models, and none is what was asked for."""
    if tag is None or is_filtered:
        return "No model matches. 'edgeloop status' shows all."
    from edgeloop._util.suggest import suggestion
    from edgeloop.models import tags_of

    tags = sorted({str(each) for row in workspace.find(()) for each in tags_of(row.values)})
    start = f"No model of experiment '{workspace.experiment}' has the tag {tag!r}"
    if not tags:
        return f"{start}: none has any."
    if tag in tags:  # it was named beside the tag, and has another
        return "No model matches. 'edgeloop status' shows all."
    return f"{start}; {suggestion(tag, tags[:_MOST_EXPERIMENTS], 'there are')}"


def _listed(others: dict[str, str]) -> str:
    named = [f"{count} in '{name}'" for name, count in list(others.items())[:_MOST_NAMES]]
    more = len(others) - len(named)
    return ", ".join([*named, *([f"and {more} more"] if more else [])])


def _is_begun(workspace: Workspace) -> bool:
    from edgeloop.store import SqliteLocation

    location = workspace.settings.location
    if not isinstance(location, SqliteLocation):
        return True
    return any((location.folder / name).exists() for name in ("store.db", "blobs"))
