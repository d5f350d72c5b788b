"""When a server was started, where that can be told.

No release of SGLang says it. A server on this machine is found by the port that it listens on, elsewhere the standard
metric of a Prometheus endpoint is read, which vLLM has.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

from eagle3_export.measure.connection import Connection, is_loopback

_METRIC = b"process_start_time_seconds "
_LISTENS = "0A"
# A tunnel or a proxy that listens there says nothing about the server behind it.
_SERVERS = (b"sglang", b"vllm")


def started_at(connection: Connection) -> float | None:
    """Returns when the server's process began, in seconds since 1970, or None where nothing tells it.

    Args:
        connection: to the server.
    """
    address = urlsplit(connection.base_url)
    if is_loopback(address.hostname or ""):
        port = address.port or (443 if address.scheme == "https" else 80)
        found = min(_processes_that_listen(port), default=None)
        if found is not None:
            return found
    for line in (connection.get_if_any("/metrics") or b"").splitlines():
        if line.startswith(_METRIC):
            try:
                return float(line[len(_METRIC) :])
            except ValueError:
                return None
    return None


def _processes_that_listen(port: int) -> Iterator[float]:
    """Yields the start times of the inference servers of this machine that listen on a port."""
    sockets = {f"socket:[{inode}]" for inode in _listening_sockets(port)}
    if not sockets:
        return
    for process in Path("/proc").iterdir():
        if not process.name.isdecimal():
            continue
        try:
            command = (process / "cmdline").read_bytes()
            if any(name in command for name in _SERVERS) and any(
                str(link.readlink()) in sockets for link in (process / "fd").iterdir()
            ):
                yield _start_time(process)
        except (OSError, ValueError, IndexError):  # it has ended, or is another user's
            continue


def _listening_sockets(port: int) -> Iterator[str]:
    for table in ("tcp", "tcp6"):
        try:
            lines = Path("/proc/net", table).read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            if fields[3] == _LISTENS and int(fields[1].rpartition(":")[2], 16) == port:
                yield fields[9]


def _start_time(process: Path) -> float:
    """From /proc/<pid>/stat: clock ticks since the machine was booted (proc(5), field 22)."""
    ticks = int((process / "stat").read_text().rpartition(")")[2].split()[19])
    booted = next(
        float(line.split()[1]) for line in Path("/proc/stat").read_text().splitlines() if "btime" in line
    )
    return booted + ticks / os.sysconf("SC_CLK_TCK")
