"""The machine: CPUs, memory, processes and threads, where operating systems differ; and progress,
by which a program that waits for them is told from one that hangs."""

from __future__ import annotations

import math
import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from concurrent.futures import Future

Item = TypeVar("Item")
Result = TypeVar("Result")

CPUS_VARIABLE = "EDGELOOP_CPUS"  # for a runner and all its processes: how many it has reserved
MEMORY_VARIABLE = "EDGELOOP_NATIVE_MEMORY"
NICENESS_VARIABLE = "EDGELOOP_NATIVE_NICENESS"
_PART_OF_MEMORY = 0.6  # for a compiler: others need some, too
_LEAST_MEMORY_BYTES = 1 << 30
_UNKNOWN_MEMORY_BYTES = 8 << 30
_M_ARENA_MAX = -8
_HOTTEST_SENSIBLE = 150.0
THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "BLIS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)
_CGROUPS, _MEMBERSHIP = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")

# Flags of `os.open`; 0 where the system has none of that name. Windows opens files as text unless
# told otherwise, so its O_BINARY comes with the flag that every call here has.
O_CLOEXEC: int = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
O_DIRECTORY: int = getattr(os, "O_DIRECTORY", 0)
O_NOFOLLOW: int = getattr(os, "O_NOFOLLOW", 0)
O_NONBLOCK: int = getattr(os, "O_NONBLOCK", 0)
# What asks a process to end, as far as the system has it: Windows has no SIGHUP.
ENDING_SIGNALS: tuple[signal.Signals, ...] = tuple(
    getattr(signal, name) for name in ("SIGTERM", "SIGINT", "SIGHUP") if hasattr(signal, name)
)
_SIGKILL: int = getattr(signal, "SIGKILL", 9)


def unmounted_above(path: Path, table: Path = Path("/etc/fstab")) -> Path | None:
    """The place above a path, or the path itself, at which this machine should have a disk or a
    share mounted, and has not."""
    places = {path, *path.parents}
    with suppress(OSError):
        for line in table.read_text(errors="replace").splitlines():
            fields = line.split()
            if len(fields) < 2 or fields[0].startswith("#"):
                continue
            place = Path(fields[1].replace("\\040", " "))
            if place in places and place.is_absolute() and not os.path.ismount(place):
                return place
    return None


def machine_celsius(zones: Path = Path("/sys/class/thermal")) -> float | None:
    """The hottest sensor of this machine; None where it has none that may be read."""
    temperatures = []
    for file in zones.glob("thermal_zone*/temp"):
        with suppress(OSError, ValueError):
            temperatures.append(int(file.read_text()) / 1000)
    return max(
        (celsius for celsius in temperatures if 0 < celsius < _HOTTEST_SENSIBLE), default=None
    )


def available_cpus(environ: Mapping[str, str] = os.environ) -> int:
    """The CPUs this process may use: `taskset`, a container or `runner --cpus` may allow fewer than
    there are. A part of a CPU counts as one."""
    count = len(usable_cpus())
    limit = cgroup_cpus()
    if limit is not None:
        count = min(count, math.ceil(limit))
    if environ.get(CPUS_VARIABLE, "").isdecimal():
        count = min(count, int(environ[CPUS_VARIABLE]))
    return max(1, count)


def usable_cpus() -> list[int]:
    """The numbers of the CPUs that the system runs this process on."""
    if hasattr(os, "sched_getaffinity"):  # Linux
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def cgroup_cpus(root: Path = _CGROUPS, membership: Path = _MEMBERSHIP) -> float | None:
    """How many CPUs' time a container or service may use, by its control groups (version 2, or 1)
    and those around them; None without a limit, and outside Linux."""
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return None
    limits = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            bases, read = (root, root / "unified"), _limit_2
        elif "cpu" in controllers.split(","):
            bases, read = (root / controllers, root / "cpu"), _limit_1
        else:
            continue
        limits += [read(folder) for base in bases for folder in _upwards(base, path)]
    return min((limit for limit in limits if limit is not None), default=None)


def _upwards(base: Path, path: str) -> Iterator[Path]:
    """A container may see its own group as the root, and a path that leads nowhere."""
    parts = [part for part in path.split("/") if part not in ("", "..")]
    for count in range(len(parts), -1, -1):
        yield base.joinpath(*parts[:count])


def _limit_2(folder: Path) -> float | None:
    with suppress(OSError, ValueError, ZeroDivisionError):
        quota, period = (folder / "cpu.max").read_text().split()
        return None if quota == "max" else int(quota) / int(period)
    return None


def _limit_1(folder: Path) -> float | None:
    with suppress(OSError, ValueError, ZeroDivisionError):
        quota = int((folder / "cpu.cfs_quota_us").read_text())
        period = int((folder / "cpu.cfs_period_us").read_text())
        return quota / period if quota > 0 else None
    return None


def memory_bytes(root: Path = _CGROUPS, membership: Path = _MEMBERSHIP) -> int:
    """The memory this process may use: of the machine, or less where control groups limit it."""
    sizes = [physical_memory_bytes()]
    with suppress(OSError):
        for line in membership.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            names = ("memory.max",) if controllers == "" else ("memory.limit_in_bytes",)
            bases = (root, root / "unified") if controllers == "" else (root / "memory",)
            if controllers and "memory" not in controllers.split(","):
                continue
            for folder in (folder for base in bases for folder in _upwards(base, path)):
                with suppress(OSError, ValueError):
                    sizes.append(int((folder / names[0]).read_text()))
    return min(sizes)


def physical_memory_bytes() -> int:
    """The machine's; where the system does not say (Windows), a small machine's."""
    if not hasattr(os, "sysconf"):
        return _UNKNOWN_MEMORY_BYTES
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def native_memory_bytes(environ: Mapping[str, str] = os.environ) -> int:
    """What one process for native work may use: as set, else a part of what there is."""
    from edgeloop._util.values import bytes_of

    set_bytes = bytes_of(environ.get(MEMORY_VARIABLE, ""))
    return set_bytes or max(_LEAST_MEMORY_BYTES, int(_PART_OF_MEMORY * memory_bytes()))


@contextmanager
def announced_memory(text: str) -> Iterator[None]:
    """What this process and those that it starts allow native work, if `text` is not empty; the
    variable wins. Raises BadSetting where that is no size."""
    from edgeloop._util.values import SIZE_FORMS, bytes_of
    from edgeloop.errors import BadSetting

    before = os.environ.get(MEMORY_VARIABLE)
    if before and not bytes_of(before):
        raise BadSetting(where=MEMORY_VARIABLE, reason=f"{before!r} is not {SIZE_FORMS}")
    is_ours = bool(text and not before)
    if is_ours:
        os.environ[MEMORY_VARIABLE] = text
    try:
        yield
    finally:
        if is_ours:
            os.environ.pop(MEMORY_VARIABLE, None)


def memory_share_bytes(count: int) -> int:
    """What one of so many processes for native work may use if they work at the same time. What is
    set for one stays its limit where there is room for all."""
    share = int(_PART_OF_MEMORY * memory_bytes()) // max(1, count)
    return min(native_memory_bytes(), max(_LEAST_MEMORY_BYTES, share))


@contextmanager
def limited_memory(most_bytes: int) -> Iterator[None]:
    """Native work that this process starts may use so much from now on."""
    before = os.environ.get(MEMORY_VARIABLE)
    os.environ[MEMORY_VARIABLE] = f"{most_bytes}B"
    try:
        yield
    finally:
        os.environ.pop(MEMORY_VARIABLE, None)
        if before is not None:
            os.environ[MEMORY_VARIABLE] = before


@contextmanager
def announced_niceness(steps: int) -> Iterator[None]:
    """Native work that this process starts steps back behind other work on the same CPUs."""
    before = os.environ.get(NICENESS_VARIABLE)
    os.environ[NICENESS_VARIABLE] = str(steps)
    try:
        yield
    finally:
        os.environ.pop(NICENESS_VARIABLE, None)
        if before is not None:
            os.environ[NICENESS_VARIABLE] = before


def step_back(environ: Mapping[str, str] = os.environ) -> None:
    """What `announced_niceness` asks of a process for native work, before it starts threads."""
    with suppress(OSError, ValueError, AttributeError):
        os.nice(max(0, int(environ.get(NICENESS_VARIABLE, "0"))))


def variables_with(**more: str) -> dict[str, str]:
    """Those of this process and some more, for one that it starts."""
    return {**os.environ, **more}


def limit_heaps() -> None:
    """One heap per CPU for this process, from now on. The C library makes up to eight for programs
    with many short-lived threads, each with holes of its own: memory that never comes back."""
    if sys.platform != "linux":
        return
    import ctypes

    with suppress(AttributeError, OSError):  # another C library
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, max(2, available_cpus()))


def thread_limit() -> int:
    """How many threads a numerical library may use; 0: as many as it wants, since the machine is
    ours. Libraries count the machine's CPUs themselves, and some even bind threads to them."""
    count = available_cpus()
    return 0 if count >= (os.cpu_count() or 1) else count


@contextmanager
def announced_cpus(count: int, for_libraries: bool) -> Iterator[None]:
    """This process and those it starts count on so many CPUs, and `for_libraries` the threads of
    numerical libraries too, where nothing else would limit them."""
    names = [name for name in THREAD_VARIABLES if for_libraries and name not in os.environ]
    before = os.environ.get(CPUS_VARIABLE)
    os.environ.update(dict.fromkeys((CPUS_VARIABLE, *names), str(count)))
    try:
        yield
    finally:
        for name in (CPUS_VARIABLE, *names):
            os.environ.pop(name, None)
        if before is not None:
            os.environ[CPUS_VARIABLE] = before


def is_container(root: Path = Path("/"), environ: Mapping[str, str] = os.environ) -> bool:
    """Whether others, whom this process cannot see, may use the same CPUs."""
    marks = (root / ".dockerenv", root / "run/.containerenv")
    named = environ.get("KUBERNETES_SERVICE_HOST") or environ.get("container")
    return bool(named) or any(mark.exists() for mark in marks)


def can_bind() -> bool:
    return hasattr(os, "sched_setaffinity")  # Linux


def bind_to_cpus(cpus: Collection[int]) -> None:
    """All threads of this process and of the processes it started run on these CPUs only, and what
    they start from now on."""
    if not can_bind():
        return
    for pid in (os.getpid(), *descendants(os.getpid())):
        for task in Path(f"/proc/{pid}/task").glob("*"):
            with suppress(OSError):  # it has just ended
                os.sched_setaffinity(int(task.name), cpus)


_on_progress: ContextVar[Callable[[], None] | None] = ContextVar("on_progress", default=None)


def show_progress() -> None:
    """Called by whatever waits with a limit or works piece by piece: it does not hang."""
    on_progress = _on_progress.get()
    if on_progress is not None:
        on_progress()


@contextmanager
def progress_shown_to(listener: Callable[[], None]) -> Iterator[None]:
    """In this thread, and in those that run in a copy of its context."""
    token = _on_progress.set(listener)
    try:
        yield
    finally:
        _on_progress.reset(token)


def start_time(pid: int) -> str:
    """When a process started, in the kernel's clock ticks: a process number may be reused. Empty if
    there is none, and outside Linux."""
    fields = process_fields(pid)
    return fields[19] if fields else ""


def process_fields(pid: int) -> list[str]:
    """Linux's fields after the program's name, which may itself contain spaces and brackets."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return []


def waited_for_cpu_s(session: int) -> float:
    """How long the processes of a session have waited for a CPU that others used: that of the
    thread that waited longest; `session` 0: this process. 0 where the system does not say."""
    longest_ns = 0
    if not session:
        return _waited_ns(Path("/proc/self")) / 1e9
    for folder in Path("/proc").glob("[0-9]*"):
        fields = process_fields(int(folder.name))
        if len(fields) < 4 or fields[3] != str(session):
            continue
        longest_ns = max(longest_ns, _waited_ns(folder))
    return longest_ns / 1e9


def _waited_ns(process: Path) -> int:
    longest_ns = 0
    for file in process.glob("task/*/schedstat"):
        with suppress(OSError, ValueError, IndexError):
            longest_ns = max(longest_ns, int(file.read_text().split()[1]))
    return longest_ns


class FairLimit:
    """A time limit for a program in a session of its own. Time that it had to wait for a CPU does
    not count, up to four times the limit: on a busy machine it ends later, and `is_unfair` then
    tells that its end says nothing about the work itself."""

    MOST = 4.0

    def __init__(self, limit_s: float, session: int = 0) -> None:
        """`session` 0: for work of this process itself."""
        self._limit_s, self._session = limit_s, session
        self._began = time.monotonic()
        self._waited_before_s: float | None = None
        self._first_look_s = min(0.5, 0.05 * limit_s)
        self._granted_s = 0.0

    def pause_s(self) -> float:
        """How long to wait before asking again; 0 when the time is over."""
        show_progress()
        left_s = self._left_s()
        first_s = self._first_look_s if self._waited_before_s is None else 1.0
        return max(0.0, min(left_s, first_s))

    def _left_s(self) -> float:
        """Work that takes a moment never pays for a look at the system."""
        elapsed_s = time.monotonic() - self._began
        if self._waited_before_s is None and elapsed_s >= self._first_look_s:
            self._waited_before_s = waited_for_cpu_s(self._session)
        left_s = self._limit_s + self._granted_s - elapsed_s
        if left_s > 0 or self.is_unfair or self._waited_before_s is None:
            return left_s
        waited_s = waited_for_cpu_s(self._session) - self._waited_before_s
        fresh_s = min(waited_s, self.MOST * self._limit_s) - self._granted_s
        if fresh_s < 0.01 * self._limit_s:
            return left_s
        self._granted_s += fresh_s
        return left_s + fresh_s

    @property
    def is_unfair(self) -> bool:
        """Whether it got all the patience there is, and the machine is busy still."""
        return self._granted_s >= self.MOST * self._limit_s


def python_module(module: str, *words: str, python: str = sys.executable) -> list[str]:
    """The command that runs a module as a program. Not with `-m` alone, by which files of the
    current folder such as random.py would take the place of modules of the standard library."""
    return [python, "-P", "-m", module, *words]


@contextmanager
def safe_path() -> Iterator[None]:
    """The same for processes that multiprocessing starts."""
    before = os.environ.get("PYTHONSAFEPATH")
    os.environ["PYTHONSAFEPATH"] = "1"
    try:
        yield
    finally:
        os.environ.pop("PYTHONSAFEPATH", None)
        if before is not None:
            os.environ["PYTHONSAFEPATH"] = before


def user_name() -> str:
    """Of this process; a container may have no name for its user."""
    with suppress(OSError, KeyError, ImportError):
        import getpass

        return getpass.getuser()
    return "unknown"


def has_users() -> bool:
    """Whether files have an owner by number and a mode; on Windows, access lists decide."""
    return hasattr(os, "geteuid")


def is_own(status: os.stat_result) -> bool:
    """Whether a file belongs to the user of this process, as far as the system can say."""
    return not has_users() or status.st_uid == os.geteuid()


def is_running(pid: int) -> bool:
    """True where the system cannot say."""
    if os.name == "nt":  # signal 0 is Ctrl-C there
        return True
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # of another user
        return True
    return True


_PR_SET_PDEATHSIG = 1


def dies_with_parent(number: int = _SIGKILL) -> Callable[[], None] | None:
    """To run in a new process before its program: the kernel sends it this signal when the thread
    that started it ends. None where the system cannot."""
    call, parent = prctl(), os.getpid()
    if call is None:
        return None

    def arrange() -> None:
        call(_PR_SET_PDEATHSIG, number, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)

    return arrange


def prctl() -> Callable[..., int] | None:
    import ctypes

    return ctypes.CDLL(None).prctl if sys.platform == "linux" else None


def descendants(root: int) -> set[int]:
    """Every living process below `root`, without itself."""
    parents = {
        pid: int(fields[1]) for pid in process_numbers() if is_alive(fields := process_fields(pid))
    }
    below: set[int] = set()
    children = {root}
    while children:
        children = {pid for pid, parent in parents.items() if parent in children} - below - {root}
        below |= children
    return below


def process_numbers() -> set[int]:
    try:
        return {int(name) for name in os.listdir("/proc") if name.isdigit()}  # noqa: PTH208
    except OSError:  # not Linux
        return set()


def is_alive(fields: list[str]) -> bool:
    """Whether a process with these `process_fields` still runs."""
    return bool(fields) and fields[0] not in ("Z", "X")


def ordered_map(
    work: Callable[[Item], Result], items: Iterable[Item], workers: int, ahead: int
) -> Generator[Result, None, None]:
    """`map` in threads. At most `ahead` items are started and not yet consumed: memory is bounded.

    Leaving the iterator early cancels what has not started and waits for the rest. Close it
    (`contextlib.closing`) where an interrupt may come between two results and work must have ended
    before anything is undone. Such iterators may feed each other.
    """
    from concurrent.futures import ThreadPoolExecutor

    pool = ThreadPoolExecutor(workers)
    pending: deque[Future[Result]] = deque()
    tasks = _Tasks(work)
    try:
        for item in items:
            pending.append(pool.submit(tasks.run, item))
            if len(pending) >= ahead:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        for future in pending:
            future.cancel()
        tasks.end()
        pool.shutdown(wait=True)


class _Tasks(Generic[Item, Result]):
    """Counts what runs. An executor joins only the threads that it has noted, and an interrupt can
    come after one was started and before it is noted."""

    def __init__(self, work: Callable[[Item], Result]) -> None:
        self._work = work
        self._changed = threading.Condition()
        self._running = 0
        self._is_over = False

    def run(self, item: Item) -> Result:
        with self._changed:
            if self._is_over:
                from concurrent.futures import CancelledError

                raise CancelledError
            self._running += 1
        try:
            return self._work(item)
        finally:
            with self._changed:
                self._running -= 1
                self._changed.notify_all()

    def end(self) -> None:
        with self._changed:
            self._is_over = True
            self._changed.wait_for(lambda: self._running == 0)
