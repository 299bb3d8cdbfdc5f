"""One run of the adb client as a subprocess: fed, read and drained at once, with an end."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Callable, Generator, Iterable
from typing import IO, TypeVar

T = TypeVar("T")
_LAST_BYTES = 64 * 1024


class Limit:
    """The time a call may take; whoever waits for something else meanwhile stops the clock."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._timer: threading.Timer | None = None
        self._end: Callable[[], None] = lambda: None
        self._lock = threading.Lock()
        self._is_over = False

    def start(self, end: Callable[[], None]) -> None:
        self._end = end
        self.restart(self.seconds)

    def restart(self, seconds: float) -> None:
        self.pause()
        with self._lock:
            if self._is_over:
                return
            self.seconds = seconds
            self._timer = threading.Timer(seconds, self._end)
            self._timer.daemon = True
            self._timer.start()

    def pause(self) -> None:
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()

    def finish(self) -> None:
        self.pause()
        with self._lock:
            self._is_over = True


class Call:
    """One run of the client: fed, read and drained at once, and ended when its time is over."""

    def __init__(self, arguments: list[str], limit: Limit, send: Iterable[bytes]) -> None:
        self.process = subprocess.Popen(  # noqa: S603 - a list of arguments, no shell
            arguments,
            stdin=subprocess.PIPE if send else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self.overdue = False
        self.sent = 0
        self.received = 0
        self.err = ""
        self._feed_trouble: Exception | None = None
        self._limit = limit
        limit.start(self._stop)
        self._helpers = [threading.Thread(target=self._drain, daemon=True)]
        if send:
            self._helpers.append(threading.Thread(target=self._feed, args=(send,), daemon=True))
        for helper in self._helpers:
            helper.start()

    def received_by(self, receive: Callable[[IO[bytes]], T]) -> tuple[T | None, Exception | None]:
        """What was read, or why it could not be; the process is over afterwards."""
        assert self.process.stdout is not None
        source = _Counted(self.process.stdout)
        result: T | None = None
        trouble: Exception | None = None
        try:
            result = receive(source)  # type: ignore[arg-type]
            source.read()  # a stream may end before its pipe does
        except Exception as error:  # noqa: BLE001 - judged by the caller, who knows if the line broke
            trouble = error
            self.process.kill()
        except BaseException:
            self.process.kill()
            raise
        finally:
            self.process.wait()
            self._limit.finish()
            for helper in self._helpers:
                helper.join()
            self.process.stdout.close()
            self.received = source.count
        return result, self._feed_trouble or trouble

    def _stop(self) -> None:
        self.overdue = True
        self.process.kill()

    def _feed(self, send: Iterable[bytes]) -> None:
        assert self.process.stdin is not None
        try:
            with self.process.stdin as target:
                for piece in send:
                    target.write(piece)
                    target.flush()
                    self.sent += len(piece)
        except OSError:
            return  # the other end left: its answer says why
        except Exception as error:  # noqa: BLE001 - of whoever makes the pieces; raised by the caller
            self._feed_trouble = error
            self.process.kill()
        finally:
            if isinstance(send, Generator):
                send.close()  # it may hold what others wait for

    def _drain(self) -> None:
        assert self.process.stderr is not None
        kept = b""
        with self.process.stderr as source:
            while piece := os.read(source.fileno(), _LAST_BYTES):
                kept = (kept + piece)[-_LAST_BYTES:]
        self.err = kept.decode("utf-8", "replace")


class _Counted:
    def __init__(self, source: IO[bytes]) -> None:
        self._source = source
        self.count = 0

    def read(self, size: int = -1) -> bytes:
        piece = self._source.read(size)
        self.count += len(piece)
        return piece

    def readline(self) -> bytes:
        piece = self._source.readline()
        self.count += len(piece)
        return piece
