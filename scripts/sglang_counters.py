"""Derives which counters of speculation SGLang releases report with every answer, from their wheels.

    python scripts/sglang_counters.py 0.5.24

The names go into the table of eagle3_export/measure/sglang_counters.py. Nothing of SGLang is imported.
"""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from typing import Annotated

import typer
from sglang_capabilities import fetch_wheel
from sglang_target_classes import Wheel

from eagle3_export.sglang.capabilities import RELEASES

SOURCE = "sglang/srt/managers/tokenizer_manager.py"


def reported_counters(wheel: Wheel) -> set[str]:
    """Reads the keys of `meta_info` about speculation off a release's source."""
    source = wheel.read(SOURCE)
    return set(re.findall(r'meta_info\["(spec_\w+)"\]', source)) | set(re.findall(r'"(spec_\w+)":', source))


def main(
    versions: Annotated[list[str] | None, typer.Argument(help="Releases; default: all known ones.")] = None,
    wheels: Annotated[Path | None, typer.Option(help="Where wheels are, and stay.")] = None,
) -> None:
    """Prints the counters of each release."""
    with tempfile.TemporaryDirectory() as scratch:
        for version in versions or RELEASES:
            names = reported_counters(fetch_wheel(version, wheels or Path(scratch)))
            typer.echo(f"{version}: {' '.join(sorted(names))}")


if __name__ == "__main__":
    typer.run(main)
