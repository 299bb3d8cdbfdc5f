"""Every error Edgeloop raises on purpose.

    EdgeloopError
    ├── BadInput                what was given cannot be used
    │   ├── BadName             a model, experiment or file name
    │   ├── BadModel            a file that is no usable ONNX model
    │   │   └── UnusableModel   valid ONNX, but not what a chip or a task can take
    │   ├── BadSetting          a setting, in a file or in the environment
    │   ├── BadCsv              a CSV file that Edgeloop did not write
    │   ├── BadJob              a job's specification
    │   ├── BadArchitecture     an architecture that its space cannot build
    │   ├── BadSpace            a function of a trial that is not there, or raises
    │   └── Infeasible          no machine of the compute could ever run it
    ├── NotFound                what was asked for is not there
    │   ├── NoSuchModel
    │   ├── NoSuchJob
    │   ├── NoSuchDataset
    │   └── BlobMissing
    ├── Conflict                somebody else was there first
    │   ├── RowExists           insert: the key is taken
    │   ├── RowChanged          update or delete: the row is no longer the one that was read
    │   ├── NameTaken           upload: the name belongs to another model
    │   ├── JobNameTaken        submit: runs/ has a job of that name
    │   ├── JobRunning          remove: the job is not over
    │   ├── ModelBusy           the row keeps changing, or its upload is under way
    │   └── LeaseLost           a result came from a holder whose token left the row
    ├── StoreError              the place where state lives
    │   ├── StoreUnavailable    away for now: infrastructure, worth retrying
    │   ├── StoreRefused        it answered, and said no: credentials or permissions
    │   ├── StoreFull           no space left
    │   └── RowTooLarge         over what a row may hold
    ├── LocalFileError          a file or folder of this machine
    ├── ModelFailed             a model that a compiler or a simulator could not get through
    │   └── NoSuchPrecision     the chip's compiler refuses its graph in this precision
    ├── TrainingFailed          a net that cannot be trained or exported: the candidate's own fault
    │   ├── TrainingDiverged    its loss is no number any more
    │   └── OutOfMemory         it does not fit into the machine's memory
    ├── SearchFailed            a search that cannot go on as it is set up
    ├── WorkerFailed            the process for native work cannot be started or does not answer
    ├── DeviceUnavailable       a board that is gone, hung or full: infrastructure, worth retrying
    │   └── DeviceBusy          another runner holds it
    ├── ComputeUnavailable      a cluster that does not answer: infrastructure, worth retrying
    ├── ComputeRefused          it answered, and said no: login, role, quota
    ├── SetupFailed             a cloud where not all that is wanted could be made
    ├── DatasetDamaged          bytes in the store or on disk are not those of the manifest
    ├── MissingExtra            an optional package that this store or command needs
    │   └── MissingSdk          Qualcomm's SDK, or a part of it
    └── WaitTimeout             nothing happened in the time given

The docstring of an error is the sentence its reader sees; the names in braces are
given when it is raised. A sentence says what happened and what to do next.
"""

from __future__ import annotations

from inspect import cleandoc


class EdgeloopError(Exception):
    """{reason}"""

    def __init__(self, **fields: object) -> None:
        self.fields = fields
        template = cleandoc(self.__doc__ or "").replace("\n", " ")
        super().__init__(template.format(**fields) or f"{type(self).__name__} {fields}")

    def __reduce__(self) -> tuple[object, ...]:
        """Errors cross process borders (a stage runs in a child), so they must pickle."""
        return (_rebuild, (type(self), self.fields))


def _rebuild(kind: type[EdgeloopError], fields: dict[str, object]) -> EdgeloopError:
    return kind(**fields)


class BadInput(EdgeloopError):
    """{reason}"""


class BadName(BadInput):
    """{what} {name!r} cannot be used: {reason}"""


class BadModel(BadInput):
    """{file} was not uploaded: {reason}"""


class UnusableModel(BadModel):
    """{file} cannot be used: {reason}"""


class BadSetting(BadInput):
    """{where}: {reason}"""


class BadCsv(BadInput):
    """{file} cannot be read as a status CSV: {reason}"""


class BadJob(BadInput):
    """{where}: {reason}"""


class BadArchitecture(BadInput):
    """{what} cannot be built: {reason}"""


class BadSpace(BadInput):
    """The space {space!r} cannot be used: {reason}"""


class Infeasible(BadInput):
    """{compute} can never run this job: {reason}"""


class NotFound(EdgeloopError):
    """{reason}"""


class NoSuchModel(NotFound):
    """No model {pattern!r} in experiment {experiment!r}. 'edgeloop status' lists those there;
    'edgeloop experiments' lists other experiments."""


class NoSuchJob(NotFound):
    """No job {pattern!r} in {folder}{hint} 'edgeloop job list' shows those there."""

    def __init__(self, hint: str = ".", **fields: object) -> None:
        super().__init__(hint=hint, **fields)


class NoSuchDataset(NotFound):
    """No dataset {name!r}: {reason}. 'edgeloop data list' shows those in the store."""


class BlobMissing(NotFound):
    """The file {key!r} is not in the store {store}."""


class Conflict(EdgeloopError):
    """{reason}"""


class RowExists(Conflict):
    """The row {key!r} is already there."""


class RowChanged(Conflict):
    """The row {key!r} was changed by somebody else in the meantime."""


class NameTaken(Conflict):
    """The name {name!r} is taken in experiment {experiment!r}: choose another with --name,
    or delete that model first."""


class JobNameTaken(Conflict):
    """The name {name!r} is taken in {folder}: choose another with --name, or run that job again
    with 'edgeloop job resubmit {name}'."""


class JobRunning(Conflict):
    """Not removed, since it is not over: {names}. End it first with 'edgeloop job abort'."""


class ModelBusy(Conflict):
    """{name} is busy ({reason}): try again in a moment."""


class LeaseLost(Conflict):
    """The lease on {stage} of {model} is no longer held by {owner}: another machine took over,
    or the model was reset or deleted. This result was thrown away."""


class StoreError(EdgeloopError):
    """{store}: {reason}"""


class StoreUnavailable(StoreError):
    """The store {store} cannot be reached: {reason}. Check the address and that the server runs,
    then try again."""


class StoreRefused(StoreError):
    """The store {store} refused: {reason}. Check the credentials and your permissions."""


class StoreFull(StoreError):
    """The store {store} is full: {reason}. Free some space, then try again."""


class RowTooLarge(StoreError):
    """The row {key!r} does not fit: {reason}. Put long texts into a file of the model instead."""


class LocalFileError(EdgeloopError):
    """{path}: {reason}"""


class ModelFailed(EdgeloopError):
    """This model cannot be used here: {reason}"""


class NoSuchPrecision(ModelFailed):
    """The chip's compiler cannot take this graph in {precision}: {reason}"""


class TrainingFailed(EdgeloopError):
    """{arch}: {reason}"""


class TrainingDiverged(TrainingFailed):
    """Training of {arch} diverged: at step {step} its loss was no number any more. Try a lower
    learning rate or another seed."""


class OutOfMemory(TrainingFailed):
    """{arch} does not fit into the memory of {device} with a batch of {batch}: try a smaller batch,
    a smaller image or a smaller net."""


class SearchFailed(EdgeloopError):
    """The search stopped: {reason}. What was found is kept; go on with --resume."""


class WorkerFailed(EdgeloopError):
    """The process for native work does not run: {reason}. Not the model's fault; try again."""


class DeviceUnavailable(EdgeloopError):
    """The device {device} cannot be used: {reason}. Not the model's fault; it will be tried
    again."""


class DeviceBusy(DeviceUnavailable):
    """The board {device} is in use by {owner}: one runner a board. Stop that one first; if it is
    dead, the board is free again in {seconds:.0f} s."""


class ComputeUnavailable(EdgeloopError):
    """The compute {compute} cannot be reached: {reason}. Its jobs are not lost; try again later."""


class ComputeRefused(EdgeloopError):
    """The compute {compute} refused: {reason}."""


class SetupFailed(EdgeloopError):
    """Not all is there: {reason}. {there}"""


class DatasetDamaged(EdgeloopError):
    """{dataset}: {reason}"""


class MissingExtra(EdgeloopError):
    """{what} needs an optional package: pip install 'edgeloop[{extra}]'."""


class MissingSdk(MissingExtra):
    """The Neural Processing SDK cannot be used: {reason}. Get it from Qualcomm (the AI Runtime SDK,
    or SNPE), set SNPE_ROOT to its folder; 'edgeloop doctor' says what is missing."""


class WaitTimeout(EdgeloopError):
    """{what} was not done after {seconds:g} s; it goes on. 'edgeloop {verb}' shows where it is."""
