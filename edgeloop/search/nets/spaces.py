"""Spaces by name: built-in ones, and functions in users' files such as `my_space.py:build`.

A space is `def build(trial, shape, classes, **options)`, which asks the trial for values and
returns a torch module. Everything that shapes the model must come from the trial, so that the
values alone rebuild it; options narrow the suggestions and need defaults.
"""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from types import ModuleType
from typing import TYPE_CHECKING, Any

from edgeloop._util.values import suggestion
from edgeloop.errors import BadArchitecture, BadInput, BadSpace, EdgeloopError, MissingExtra
from edgeloop.search.nets import archai, classifier, hourglass
from edgeloop.search.nets.architecture import Architecture, Shape
from edgeloop.search.nets.trial import FixedTrial, RecordingTrial, Trial

if TYPE_CHECKING:
    from torch import nn

Builder = Callable[..., "nn.Module"]

BUILT_IN: Mapping[str, Builder] = {
    "hourglass": hourglass.build,
    archai.NAME: archai.build,
    "small-classifier": classifier.build,
}
_QUESTIONS: Mapping[str, Callable[..., object]] = {
    "hourglass": hourglass.ask,
    archai.NAME: archai.ask,
    "small-classifier": classifier.ask,
}
_DRAWING = Lock()  # torch has one random generator per process
_GIVEN = ("trial", "shape", "classes")


@dataclass(frozen=True)
class Space:
    """A function of a trial, its name in architectures, and its options."""

    name: str
    function: Builder
    options: Mapping[str, Any] = field(default_factory=dict)

    def build(self, trial: Trial, shape: Shape, classes: int) -> nn.Module:
        """Build the model of a trial. Whatever the function raises becomes one sentence."""
        check_torch()
        from torch import nn

        net = self._called(self.function, trial, shape, classes)
        if not isinstance(net, nn.Module):
            reason = f"it returned {type(net).__name__} instead of a torch module"
            raise BadSpace(space=self.name, reason=reason)
        return net

    def sample(self, seed: int, shape: Shape, classes: int) -> Architecture:
        """A random member, the same for the same seed."""
        trial = RecordingTrial(seed)
        self.ask(trial, shape, classes)
        return Architecture(self.name, trial.params, shape, classes)

    def ask(self, trial: Trial, shape: Shape, classes: int) -> None:
        """Only suggest values. Built-in spaces do so without building a model, which is what takes
        the time; a user's function has to be called."""
        if BUILT_IN.get(self.name) is self.function:
            check_torch()
            self._called(_QUESTIONS[self.name], trial, shape, classes)
        else:
            self.build(trial, shape, classes)

    def _called(
        self, function: Callable[..., object], trial: Trial, shape: Shape, classes: int
    ) -> object:
        try:
            return function(trial, shape, classes, **self.options)
        except EdgeloopError as error:
            if isinstance(error, BadArchitecture | BadSpace):
                raise
            raise BadSpace(space=self.name, reason=str(error)) from error
        except (KeyboardInterrupt, SystemExit, MemoryError):
            raise
        except Exception as error:
            if type(error).__module__.startswith("optuna."):  # a pruned trial is not an error
                raise
            raise BadSpace(space=self.name, reason=f"it raised {_words(error)}") from error


def find_space(
    name: str, options: Mapping[str, Any] | None = None, project: Path | None = None
) -> Space:
    """A built-in space, or `FILE.py:FUNCTION` with the file inside the project's folder."""
    if name in BUILT_IN:
        function = BUILT_IN[name]
    elif ":" in name:
        function = _from_file(name, project or Path.cwd())
    else:
        hint = suggestion(name, BUILT_IN, "built-in spaces are")
        reason = f"{hint} A space of your own is named like my_space.py:build"
        raise BadSpace(space=name, reason=reason)
    space = Space(name, function, dict(options or {}))
    _check_options(space)
    return space


def build(arch: Architecture, seed: int = 0, project: Path | None = None) -> nn.Module:
    """The model of an architecture with initial weights, which depend only on the seed."""
    check_torch()
    import torch

    space = find_space(arch.space, project=project)
    trial = FixedTrial(arch.params, f"{arch.id} of the space {arch.space!r}")
    with _DRAWING, torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        net = space.build(trial, arch.shape, arch.classes)
    trial.check_all_used()
    return net


def check_torch() -> None:
    if importlib.util.find_spec("torch") is None:
        raise MissingExtra(what="Building models", extra="train")


def _from_file(name: str, project: Path) -> Builder:
    file, _, attribute = name.rpartition(":")
    path = _inside(name, file, project)
    if not path.is_file():
        raise BadSpace(space=name, reason=f"there is no file {file!r} in {project}")
    function = getattr(_module(name, path, project), attribute, None)
    if function is None:
        raise BadSpace(space=name, reason=f"{file} has no function {attribute!r}")
    if not callable(function):
        raise BadSpace(space=name, reason=f"{attribute!r} in {file} is not a function")
    return function  # type: ignore[no-any-return]


def _inside(name: str, file: str, project: Path) -> Path:
    """Names may come from untrusted files; only code inside the project is run."""
    if not file.endswith(".py") or "\0" in file:
        raise BadSpace(space=name, reason="a space of your own is named like my_space.py:build")
    root = project.resolve()
    path = (root / file).resolve()
    if not path.is_relative_to(root):
        raise BadSpace(space=name, reason=f"{file} is not inside the project {root}")
    return path


def _module(name: str, path: Path, project: Path) -> ModuleType:
    """Loaded again each time, since the file may have changed. It may import its neighbours, but
    none of them takes the place of a module that is installed."""
    for folder in (str(path.parent), str(project.resolve())):
        if folder not in sys.path:
            sys.path.append(folder)
    label = f"edgeloop_space_{hashlib.sha256(str(path).encode()).hexdigest()[:12]}"
    spec = importlib.util.spec_from_file_location(label, path)
    if spec is None or spec.loader is None:
        raise BadSpace(space=name, reason=f"{path.name} cannot be loaded")
    module = importlib.util.module_from_spec(spec)
    sys.modules[label] = module  # dataclasses and pickle look a class's module up there
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise BadSpace(space=name, reason=f"{path.name} raised {_words(error)}") from error
    return module


def _check_options(space: Space) -> None:
    try:
        parameters = inspect.signature(
            _QUESTIONS.get(space.name, space.function)
        ).parameters.values()
    except (TypeError, ValueError):  # a callable without a signature
        return
    kinds = inspect.Parameter
    positional = [
        p for p in parameters if p.kind in (kinds.POSITIONAL_ONLY, kinds.POSITIONAL_OR_KEYWORD)
    ]
    takes_any = any(p.kind is kinds.VAR_POSITIONAL for p in parameters)
    if len(positional) < len(_GIVEN) and not takes_any:
        reason = "its function should take (trial, shape, classes)"
        raise BadSpace(space=space.name, reason=reason)
    if any(p.kind is kinds.VAR_KEYWORD for p in parameters):
        return
    named = (kinds.POSITIONAL_OR_KEYWORD, kinds.KEYWORD_ONLY)
    known = [p.name for p in parameters if p.kind in named and p not in positional[: len(_GIVEN)]]
    for option in space.options:
        if option not in known:
            hint = suggestion(option, known, "it takes") if known else "it takes none."
            raise BadInput(reason=f"the space {space.name!r} has no option {option!r}: {hint}")


def _words(error: Exception) -> str:
    first = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {first}" if first else type(error).__name__
