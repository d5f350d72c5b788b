"""Runs a function in a forked child and kills it at, or fails, its n-th system call (ptrace, Linux on x86-64).

Forked from a process that has imported everything, a run costs milliseconds, so that every single call can be tried.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import signal
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field

AVAILABLE = platform.machine() == "x86_64" and platform.system() == "Linux"

# linux/ptrace.h, asm/unistd_64.h
_TRACEME, _GETREGS, _SETREGS, _SYSCALL, _SETOPTIONS = 0, 12, 13, 24, 0x4200
_OPTIONS = 0x1 | 0x8 | 0x100000  # TRACESYSGOOD | TRACECLONE | EXITKILL
_WALL = 0x40000000
_ORIG_RAX, _RAX, _REGISTERS = 15, 10, 27

FILE_CALLS = {
    0: "read", 1: "write", 2: "open", 4: "stat", 5: "fstat", 6: "lstat", 8: "lseek", 16: "ioctl", 17: "pread64",
    18: "pwrite64", 21: "access", 40: "sendfile", 72: "fcntl", 73: "flock", 74: "fsync", 76: "truncate",
    77: "ftruncate", 78: "getdents", 82: "rename", 83: "mkdir", 84: "rmdir", 87: "unlink", 88: "symlink",
    89: "readlink", 137: "statfs", 138: "fstatfs", 217: "getdents64", 257: "openat", 258: "mkdirat", 262: "newfstatat",
    263: "unlinkat", 264: "renameat", 266: "symlinkat", 267: "readlinkat", 277: "sync_file_range", 280: "utimensat",
    295: "preadv", 316: "renameat2", 326: "copy_file_range", 332: "statx",
}  # fmt: skip

_libc = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.restype = ctypes.c_long
_libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]


@dataclass
class Outcome:
    """What became of one run.

    Attributes:
        calls: the numbers of its system calls, in order, as far as it got.
        file_calls: how many of them touch files.
        failed: the name of the one that was made to fail.
        status: its exit status; None if it was killed.
        stopped: the fault was reached.
    """

    calls: list[int] = field(default_factory=list)
    file_calls: int = 0
    status: int | None = None
    failed: str | None = None


def run(
    action: Callable[[], int], *, kill_before: int | None = None, fail: tuple[int, int] | None = None
) -> Outcome:
    """Runs `action` in a child; its answer becomes the exit status, 99 for an exception.

    Args:
        kill_before: SIGKILL when the n-th system call (from 0) is about to be made.
        fail: (n, errno): the n-th of `FILE_CALLS` is not made and answers errno. Others, such as those that threads
            wait by, never fail.
    """
    child = os.fork()
    if child == 0:
        _be_traced(action)
    os.waitpid(child, _WALL)
    _ptrace(_SETOPTIONS, child, _OPTIONS)
    outcome = Outcome()
    inside: dict[int, bool] = {}
    failing: dict[int, int] = {}
    _ptrace(_SYSCALL, child, 0)
    while True:
        thread, status = os.waitpid(-1, _WALL)
        if os.WIFEXITED(status) or os.WIFSIGNALED(status):
            if thread == child:
                outcome.status = os.WEXITSTATUS(status) if os.WIFEXITED(status) else None
                return outcome
            continue
        stop = os.WSTOPSIG(status)
        deliver = 0
        if stop == signal.SIGTRAP | 0x80:
            entering = inside[thread] = not inside.get(thread, False)
            if entering and _enter(thread, outcome, kill_before, fail, failing):
                os.kill(child, signal.SIGKILL)
            elif not entering and thread in failing:
                _set_register(thread, _RAX, -failing.pop(thread))
        elif stop not in (signal.SIGTRAP, signal.SIGSTOP):
            deliver = stop
        _ptrace(_SYSCALL, thread, deliver, dead_is_fine=True)


def _enter(
    thread: int,
    outcome: Outcome,
    kill_before: int | None,
    fail: tuple[int, int] | None,
    failing: dict[int, int],
) -> bool:
    """Notes the call; true if the child is to die before it."""
    index = len(outcome.calls)
    outcome.calls.append(_registers(thread)[_ORIG_RAX])
    if index == kill_before:
        return True
    call = outcome.calls[-1]
    outcome.file_calls += call in FILE_CALLS
    if fail is not None and call in FILE_CALLS and outcome.file_calls == fail[0] + 1:
        outcome.failed = FILE_CALLS[call]
        failing[thread] = fail[1]
        _set_register(thread, _ORIG_RAX, -1)
    return False


def _be_traced(action: Callable[[], int]) -> None:
    status = 99
    try:
        _ptrace(_TRACEME, 0, 0)
        os.kill(os.getpid(), signal.SIGSTOP)
        status = action()
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def _registers(thread: int) -> ctypes.Array[ctypes.c_long]:
    registers = (ctypes.c_long * _REGISTERS)()
    _ptrace(_GETREGS, thread, ctypes.addressof(registers), dead_is_fine=True)
    return registers


def _set_register(thread: int, index: int, value: int) -> None:
    registers = _registers(thread)
    registers[index] = value
    _ptrace(_SETREGS, thread, ctypes.addressof(registers))


def _ptrace(request: int, thread: int, data: int, *, dead_is_fine: bool = False) -> None:
    if _libc.ptrace(request, thread, None, data) == -1:
        number = ctypes.get_errno()
        if not (dead_is_fine and number == errno.ESRCH):
            raise OSError(number, f"ptrace({request}): {os.strerror(number)}")
