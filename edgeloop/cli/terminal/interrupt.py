"""Ctrl-C: every command ends with exit code 130 and says what it leaves behind.

What that is depends on the command only, for most of them: `KEPT`. One that knows better while it
runs says so with `kept`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import click

INTERRUPTED = 130  # what shells say of Ctrl-C
NOTHING = "Stopped; nothing was changed."
_SAID = "edgeloop.kept"
_GOES_ON = "Stopped; jobs that were submitted continue. See: edgeloop job status"
_SO_FAR = "Stopped; what was changed so far stays. Run it again for the rest."

KEPT: Mapping[str, str] = {
    "upload": "Stopped; models uploaded so far are kept. Run it again for the others.",
    "download": "Stopped; files downloaded so far are kept. Run it again for the others.",
    **dict.fromkeys(("reset", "priority", "unlock", "delete", "steady"), _SO_FAR),
    "bench": "Stopped; no result was written.",
    "runner": "Stopped; finished stages are kept, unfinished ones were given back.",
    "compare": "Stopped; no comparison was written, and the models are as they were.",
    "layers": "Stopped; no result was written, and the model is as it was.",
    "advise": "Stopped; no file was written, and the model is as it was.",
    "precision": "Stopped; no plan was written, and the model is as it was.",
    "gate": "Stopped; no verdict and no file was written.",
    "run": _GOES_ON,
    **dict.fromkeys(
        (f"job {verb}" for verb in ("submit", "resubmit", "abort", "remove")), _GOES_ON
    ),
    **dict.fromkeys(
        (f"job {verb}" for verb in ("logs", "wait", "status")),
        "Stopped; the jobs continue. See: edgeloop job status",
    ),
    "job results": "Stopped; files fetched so far are kept. Run it again for the others.",
    "data push": "Stopped; files sent so far are kept. Push again to continue.",
    "data pull": "Stopped; files fetched so far are kept. Pull again to continue.",
    "data faces": "Stopped; images drawn so far are kept. Run it again to continue.",
    "search": "Stopped; results so far are kept. Continue with: --resume",
    "train-pareto": "Stopped; models that were trained are kept. Run it again for the others.",
    "train": "Stopped; no checkpoint was written yet.",
    "export": "Stopped; no file was written.",
    "pareto": "Stopped; a file is written whole or not at all.",
    "report": "Stopped; no report was written.",
    "portal": "Stopped; the portal is closed.",
    "completion install": "Stopped; run it again: nothing is added twice.",
    "notebook": "Stopped; a file is written whole or not at all.",
    **dict.fromkeys((f"fleet {verb}" for verb in ("up", "down", "scale")), _SO_FAR),
    **dict.fromkeys(("gc", "azure setup", "azure create"), _SO_FAR),
    **dict.fromkeys((f"service {verb}" for verb in ("install", "uninstall")), _SO_FAR),
    **dict.fromkeys(("store repair", "data remove"), _SO_FAR),
    **dict.fromkeys(
        (
            *("status", "list", "experiments", "inspect", "devices", "devices calibrate", "usage"),
            *("queue", "job list", "data list", "data verify", "searches", "doctor", "health"),
            *("service status", "fleet manifest", "fleet status", "azure connection-string"),
            *(
                "completion show",
                "azure doctor",
                "azure list",
                "secrets scan",
                "store check",
                "schema",
            ),
        ),
        NOTHING,
    ),
}
"""By the words of the command."""


def kept(sentence: str | Callable[[], str]) -> None:
    """What is said if Ctrl-C ends the command from now on."""
    context = click.get_current_context(silent=True)
    if context is not None:
        context.meta[_SAID] = sentence


def sentence_of(context: click.Context, arguments: Sequence[str]) -> str:
    """What the command line that the program was given leaves behind."""
    said = context.meta.get(_SAID)
    if said is None:
        return KEPT.get(" ".join(_words(context, arguments)), "Stopped.")
    return str(said() if callable(said) else said)


def _words(context: click.Context, arguments: Sequence[str]) -> list[str]:
    """`job logs`: the names of the groups and of the command."""
    words: list[str] = []
    command: click.Command | None = context.command
    for argument in arguments:
        if isinstance(command, click.Group):
            inner = command.get_command(context, argument)
            if inner is not None:
                words.append(argument)
                command = inner
    return words
