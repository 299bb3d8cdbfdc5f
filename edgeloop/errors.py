"""Every error that Edgeloop raises deliberately.

    EdgeloopError
    ├── BadInput                unusable input
    │   ├── BadName             a model, experiment or file name
    │   ├── BadModel            a file that is not a usable ONNX model
    │   │   └── UnusableModel   valid ONNX, but unsupported by a chip or a task
    │   ├── BadSetting          a setting, in a file or in the environment
    │   ├── BadCsv              a CSV file that Edgeloop did not write
    │   ├── BadJob              a job's specification
    │   ├── BadArchitecture     an architecture that its space cannot build
    │   ├── BadSpace            a space function that is missing or raises
    │   ├── DatasetMisfit       usable data that does not fit a model
    │   ├── PlanMisfit          a precision file whose tensors a model does not have
    │   └── Infeasible          no machine of the compute could ever run it
    ├── NotFound                something that does not exist
    │   ├── NoSuchModel
    │   ├── NoSuchJob
    │   ├── NoSuchDataset
    │   └── BlobMissing
    ├── Conflict                another process was faster
    │   ├── RowExists           insert: the key is taken
    │   ├── RowChanged          update or delete: the row is no longer the one that was read
    │   ├── NameTaken           upload: the name belongs to another model
    │   ├── JobNameTaken        submit: runs/ has a job of that name
    │   ├── JobRunning          remove: the job is still running
    │   ├── ModelBusy           the row keeps changing, or its upload is in progress
    │   ├── NotConverted        a model that is not converted for this toolchain (yet)
    │   ├── OtherDataset        a model that is evaluated with data that a runner has not opened
    │   ├── LeaseLost           a result whose lease token is no longer in the row
    │   └── SupervisorReplaced  a fleet whose record has the token of another supervisor
    ├── StoreError              the store
    │   ├── StoreUnavailable    unreachable: infrastructure, worth retrying
    │   │   ├── FilesAway       the folder of its files is not mounted
    │   │   └── StoreLimited    the service's rate limit: too many requests
    │   ├── StoreRefused        credentials or permissions
    │   ├── StoreFull           no space left
    │   ├── StoreMissing        a store that was named and is not there
    │   ├── StoreTooNew         a newer Edgeloop upgraded it beyond what this one understands
    │   ├── StoreTooOld         it must be upgraded first, which locks older versions out
    │   ├── BlobBehindLink      a symbolic link in the store's folder, which is not followed
    │   ├── StoreDamaged        a database that cannot be read
    │   │   └── RowDamaged      one row that cannot be read
    │   └── RowTooLarge         above the size limit of a row
    ├── LocalFileError          a file or folder of this machine
    ├── ModelFailed             a model that the compiler or simulator cannot process
    │   ├── ModelRefused        for a reason in the model itself: trying again changes nothing
    │   ├── TimeLimitReached    by a time limit of ours: with more time it might work
    │   └── NoSuchPrecision     the chip's compiler refuses its graph in this precision
    ├── TrainingFailed          a model that cannot be trained or exported
    │   ├── TrainingDiverged    its loss is no longer finite
    │   └── OutOfMemory         it does not fit into memory
    ├── SearchFailed            a search that cannot continue as configured
    ├── WorkerFailed            the isolated process does not start or respond
    ├── MemoryExceeded          a model that needs more memory than this machine has for it
    ├── DeviceUnavailable       an unplugged, hung or full board: infrastructure, worth retrying
    │   └── DeviceBusy          another runner holds it
    ├── ComputeUnavailable      a cluster that does not respond: infrastructure, worth retrying
    ├── ComputeRefused          login, role or quota
    ├── SetupFailed             not all cloud resources could be created
    ├── DatasetDamaged          data that does not match the manifest
    ├── DatasetUnavailable      data that this machine cannot read: infrastructure
    ├── FileDamaged             a model's file in the store is not the one that was stored
    ├── MissingExtra            an optional package that this store or command needs
    │   ├── MissingSdk          Qualcomm's SDK, or a part of it
    │   └── MissingLibrary      a library of the operating system
    └── WaitTimeout             the time limit passed

The docstring of an error is the sentence that the user sees; names in braces are filled in when it
is raised. A sentence says what happened, why, and what to do.
"""

from __future__ import annotations

from inspect import cleandoc
from pathlib import Path


class EdgeloopError(Exception):
    """{reason}"""

    def __init__(self, **fields: object) -> None:
        self.fields = fields
        template = cleandoc(self.__doc__ or "").replace("\n", " ")
        super().__init__(template.format(**fields) or f"{type(self).__name__} {fields}")

    def __reduce__(self) -> tuple[object, ...]:
        """Errors cross process boundaries, so they must pickle."""
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
    """the space {space!r} cannot be used: {reason}"""


class DatasetMisfit(BadInput):
    """{reason}"""


class PlanMisfit(BadInput):
    """{reason}"""


class Infeasible(BadInput):
    """{compute} can never run this job: {reason}"""


class NotFound(EdgeloopError):
    """{reason}"""


class NoSuchModel(NotFound):
    """no model {pattern!r} in experiment {experiment!r}{hint}"""

    def __init__(self, hint: str = "", **fields: object) -> None:
        chosen = f"-e {fields.get('experiment', 'EXPERIMENT')}"
        usual = (
            f". 'edgeloop status {chosen}' lists its models, 'edgeloop experiment list' all others."
        )
        super().__init__(hint=hint or usual, **fields)


class NoSuchJob(NotFound):
    """no job {pattern!r} in {folder}{hint} 'edgeloop job list' shows all jobs."""

    def __init__(self, hint: str = ".", **fields: object) -> None:
        super().__init__(hint=hint, **fields)


class NoSuchDataset(NotFound):
    """no dataset {name!r}: {reason}. 'edgeloop data list' shows the datasets in the store."""


class BlobMissing(NotFound):
    """the file {key!r} is not in the store {store}."""


class Conflict(EdgeloopError):
    """{reason}"""


class RowExists(Conflict):
    """the row {key!r} already exists."""


class RowChanged(Conflict):
    """the row {key!r} was changed by another process in the meantime."""


class NameTaken(Conflict):
    """the name {name!r} is taken in experiment {experiment!r}: choose another with --name,
    or delete that model first."""


class JobNameTaken(Conflict):
    """the name {name!r} is taken in {folder}: choose another with --name, or run that job again
    with 'edgeloop job resubmit {name}'."""


class JobRunning(Conflict):
    """not removed, because still running: {names}. Cancel first with 'edgeloop job abort'."""


class ModelBusy(Conflict):
    """{name} is busy ({reason}): try again in a moment."""


class NotConverted(Conflict):
    """{model} is not converted for the toolchain {toolchain} yet: a runner that has it does that
    first."""


class OtherDataset(Conflict):
    """{model} is to be evaluated with {dataset}, which its experiment has named since this runner
    opened its data."""


class LeaseLost(Conflict):
    """the lease on {stage} of {model} is no longer held by {owner}: another machine took over,
    or the model was reset or deleted. This result was discarded."""


class SupervisorReplaced(Conflict):
    """another supervisor has taken over the fleet {fleet!r}, or the fleet was removed."""


class StoreError(EdgeloopError):
    """{store}: {reason}"""


class StoreUnavailable(StoreError):
    """the store {store} cannot be reached: {reason}. Check the address and that the server runs,
    then try again."""


class FilesAway(StoreUnavailable):
    """the files of the store {store} are not there: {reason}."""


class StoreLimited(StoreUnavailable):
    """the storage account is limiting requests ({reason}): {store} was asked again for
    {seconds:.0f} s. It recovers by itself; fewer runners, or a second account, keep it from
    happening again."""


class StoreRefused(StoreError):
    """the store {store} refused: {reason}. Check the credentials and your permissions."""


class StoreFull(StoreError):
    """the store {store} is full: {reason}. Free some space, then try again."""


class StoreMissing(StoreError):
    """there is no store at {store}: {reason}"""


class StoreTooNew(StoreError):
    """the store {store} has schema {schema}, which {newer} wrote, and this version of Edgeloop
    (schema {ours}) cannot {use} it. Nothing was changed. Upgrade Edgeloop on this machine:
    pip install --upgrade edgeloop."""


class StoreTooOld(StoreError):
    """the store {store} has schema {schema}, and this version of Edgeloop writes schema {ours},
    which older versions cannot share. Nothing was changed. End the older runners, then run
    'edgeloop store upgrade'."""


class BlobBehindLink(StoreError):
    """the files of the store cannot be used: {link} is a symbolic link, and links inside a store
    are not followed. Put the folder itself there, mount it there ('mount --bind'), or name the real
    folder of the whole store in the settings; 'edgeloop store check' lists all links."""


class StoreDamaged(StoreError):
    """the store {store} is damaged: {reason}. Nothing was changed. 'edgeloop store check' says what
    is wrong, and 'edgeloop store repair' saves what can be read."""


class RowDamaged(StoreDamaged):
    """the row {key!r} of {table} in the store {store} cannot be read: {reason}. Nothing was
    changed. 'edgeloop store check' says what is wrong, and 'edgeloop store repair' saves what can
    be read."""


class RowTooLarge(StoreError):
    """the row {key!r} is too large: {reason}. Put long texts into a file of the model instead."""


class LocalFileError(EdgeloopError):
    """{path}: {reason}"""

    def __init__(self, path: object, **fields: object) -> None:
        """A path is shown whole: a relative one may have been meant from another folder."""
        super().__init__(path=path.absolute() if isinstance(path, Path) else path, **fields)


class ModelFailed(EdgeloopError):
    """the model cannot be used here: {reason}"""


class ModelRefused(ModelFailed):
    """the model cannot be used here: {reason}"""


class TimeLimitReached(ModelFailed):
    """the model cannot be used here: {reason}"""


class NoSuchPrecision(ModelFailed):
    """the chip's compiler does not accept this graph in {precision}: {reason}"""


class TrainingFailed(EdgeloopError):
    """{arch}: {reason}"""


class TrainingDiverged(TrainingFailed):
    """training of {arch} diverged: the loss was not finite at step {step}. Try a lower learning
    rate or another seed."""


class OutOfMemory(TrainingFailed):
    """{arch} does not fit into the memory of {device} with a batch of {batch}: try a smaller batch,
    a smaller image or a smaller model."""


class SearchFailed(EdgeloopError):
    """the search stopped: {reason}. Results so far are kept; continue with --resume."""


class WorkerFailed(EdgeloopError):
    """the isolated process does not run: {reason}. The model is not to blame; try again."""


class MemoryExceeded(EdgeloopError):
    """{work} needed more than {limit} of memory, which is what this machine allows one model (the
    setting native_memory). A machine with more memory may do it."""


class DeviceUnavailable(EdgeloopError):
    """the device {device} cannot be used: {reason}. The model is not to blame and will be tried
    again."""


class DeviceBusy(DeviceUnavailable):
    """the board {device} is in use by {owner}: a board serves one runner. Stop that one first; if
    it is dead, the board is free again in {seconds:.0f} s."""


class ComputeUnavailable(EdgeloopError):
    """the compute {compute} cannot be reached: {reason}. Its jobs are not lost; try again later."""


class ComputeRefused(EdgeloopError):
    """the compute {compute} refused: {reason}."""


class SetupFailed(EdgeloopError):
    """not everything could be created: {reason}. {there}"""


class DatasetDamaged(EdgeloopError):
    """{dataset}: {reason}"""


class DatasetUnavailable(EdgeloopError):
    """the data on this machine cannot be used: {reason}. No model is to blame."""


class FileDamaged(EdgeloopError):
    """{file} of {model} is damaged in the store: {key} is not the file that was stored there. Put
    it back from a backup; or reset the model if a runner made it, or delete and upload it again."""


class MissingExtra(EdgeloopError):
    """{what} needs an optional package: pip install 'edgeloop[{extra}]'."""


class MissingSdk(MissingExtra):
    """the Neural Processing SDK cannot be used: {reason}. Get it from Qualcomm (the AI Runtime SDK,
    or SNPE), set SNPE_ROOT to its folder; 'edgeloop doctor' says what is missing."""


class MissingLibrary(MissingExtra):
    """{reason}. 'edgeloop doctor' says what else is missing."""


class WaitTimeout(EdgeloopError):
    """{what} has not finished after {seconds:g} s and continues: see 'edgeloop {verb}'."""
