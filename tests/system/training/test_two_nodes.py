"""Two nodes that share no filesystem and no loopback: network namespaces, and a mount namespace for the second."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.machine import program, require_root
from tests.support.training.checks import assert_mirrors, output_of
from tests.support.training.harness import MODULE, start
from tests.support.training.tiny_world import TinyWorld, train_arguments

pytestmark = [pytest.mark.slow, pytest.mark.nightly, pytest.mark.training]

ADDRESSES = ("10.213.77.1", "10.213.77.2")
# Run with the node's own, empty directory in place of $0, and list what it holds in the end.
ON_ITS_OWN_DISK = (
    'mount -t tmpfs none "$0" && list="$1" && shift && "$@"; status=$?; find "$0" > "$list"; exit $status'
)


@pytest.fixture
def nodes() -> Iterator[tuple[str, str]]:
    """Two network namespaces, joined by a cable; skips where this user may not make them."""
    names = (f"e3x-{os.getpid()}-0", f"e3x-{os.getpid()}-1")

    program("ip")
    require_root("making network namespaces")

    def ip(*arguments: str) -> None:
        subprocess.run(["ip", *arguments], check=True, capture_output=True)

    try:
        for name in names:
            ip("netns", "add", name)
        ip(
            "link",
            "add",
            "eth0",
            "netns",
            names[0],
            "type",
            "veth",
            "peer",
            "name",
            "eth0",
            "netns",
            names[1],
        )
        for name, address in zip(names, ADDRESSES, strict=True):
            ip("-n", name, "address", "add", f"{address}/24", "dev", "eth0")
            for device in ("lo", "eth0"):
                ip("-n", name, "link", "set", device, "up")
    except subprocess.CalledProcessError as error:
        remove(names)
        pytest.skip(f"network namespaces cannot be made here: {error.stderr.decode().strip()}")
    yield names
    remove(names)


def remove(names: tuple[str, ...]) -> None:
    for name in names:
        subprocess.run(["ip", "netns", "delete", name], capture_output=True)


def test_exports_exist_on_rank_zeros_node_only(
    world: TinyWorld, save_path: Path, tmp_path: Path, nodes: tuple[str, str]
) -> None:
    disk = save_path.parent / "disk"
    disk.mkdir()
    save_path = disk / "checkpoints"
    arguments = train_arguments(world, save_path)
    listing = tmp_path / "second-node.txt"
    runs = []
    for rank, node in enumerate(nodes):
        inside = [sys.executable, *MODULE]
        if rank == 1:
            inside = ["sh", "-c", ON_ITS_OWN_DISK, str(disk), str(listing), *inside]
        environment = {
            "MASTER_ADDR": ADDRESSES[0],
            "MASTER_PORT": "29511",
            "RANK": str(rank),
            "WORLD_SIZE": "2",
            "LOCAL_RANK": "0",
            "GLOO_SOCKET_IFNAME": "eth0",
        }
        faults = {"output": str(output_of(save_path)), "kind": "slow"} if rank == 1 else None
        launcher = ["ip", "netns", "exec", node, *inside]
        runs.append(
            start(launcher, arguments, tmp_path, environment=environment, faults=faults, label=f"node-{rank}")
        )
    for run in runs:
        assert run.wait() == 0, run.output[-4000:]

    assert_mirrors(save_path, {"0", "1"})
    assert runs[1].count(1, "step") == runs[0].count(0, "step") > 0
    # Nothing of the exporter's on the second node: no file, no log record, no attempt.
    assert "sglang" not in listing.read_text()
    assert not [e for e in runs[1].events(1) if e["event"] in ("reaches output", "logs")]
    assert "Traceback" not in runs[1].output
