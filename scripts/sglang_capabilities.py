"""Derives what SGLang releases read and compute of EAGLE-3 drafts, from their wheels on the package index.

    python scripts/sglang_capabilities.py 0.5.24            prints what 0.5.24 can do
    python scripts/sglang_capabilities.py --all --write     rewrites the table of target classes

To add a release: append it to RELEASES in eagle3_export/sglang/capabilities.py and run this with its number. Enter
where it differs from the release before: a row in _SINCE for each capability that is new. A flag that no release had
needs a field in Capabilities and a row in _FLAGS first. Then rewrite the tables of target classes (--all --write) and
of counters (scripts/sglang_counters.py), and prove the plugin: python -m tests.support.sglang_cpu.releases 0.5.24.
Nothing of SGLang is imported, so its dependencies are not needed.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer
from sglang_target_classes import TargetClasses, Wheel, derive_target_classes

from eagle3_export.sglang.capabilities import RELEASES, Capabilities, capabilities

TABLE = Path(__file__).parents[1] / "eagle3_export" / "sglang" / "aux_layer_table.py"
DRAFT, LLAMA = "sglang/srt/models/llama_eagle3.py", "sglang/srt/models/llama.py"


def fetch_wheel(version: str, directory: Path) -> Wheel:
    """Downloads a release's wheel, without its dependencies, unless `directory` holds it already.

    Raises:
        FileNotFoundError: the package index does not answer, or has no such release.
    """
    found = sorted(directory.glob(f"sglang-{version}-*.whl"))
    if not found:
        directory.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
        command += ["--retries", "1", "--timeout", "30"]
        # Wheels may be built for one Python only; none is run here.
        command += ["--python-version", "3.11", f"sglang=={version}", "--dest"]
        # Downloaded aside, so that an interrupted download is not taken for a wheel the next time.
        with tempfile.TemporaryDirectory(dir=directory) as aside:
            result = subprocess.run([*command, aside], capture_output=True, text=True, check=False)
            found = [path.replace(directory / path.name) for path in Path(aside).glob("sglang-*.whl")]
        if not found:
            raise FileNotFoundError(f"sglang {version}: {result.stderr.strip()[-500:]}")
    return Wheel(found[0])


def derive_capabilities(version: str, wheel: Wheel) -> Capabilities:
    """Reads a release's capabilities off its sources."""
    draft, llama = wheel.read(DRAFT), wheel.read(LLAMA)
    keys = config_keys(draft)
    sources = {name for name in wheel.names if name.startswith("sglang/srt/") and name.endswith(".py")}
    flags = "".join(wheel.read(name) for name in sources if "arg" in name)
    plugin_files = [name for name in sources if "/plugins/" in name]
    pin = re.search(r"^Requires-Dist: transformers==([\w.]+)", wheel.metadata, re.MULTILINE)
    return Capabilities(
        version=version,
        multiple_layers="config.num_hidden_layers" in draft
        and "currently only supports 1 layer" not in draft,
        fc_norm="fc_norm" in keys,
        norm_output="norm_output" in keys,
        aux_count="num_aux_hidden_states" in keys,
        norm_before_fc="norm_before_fc" in keys,
        window_flag="speculative_draft_window_size" in draft,
        rope_parameters="rope_parameters" in config_keys(llama),
        plugins=any('"sglang.srt.plugins"' in wheel.read(name) for name in plugin_files),
        draft_quantization_flag="speculative_draft_model_quantization" in flags,
        transformers=pin[1] if pin else "",
    )


def config_keys(source: str) -> set[str]:
    """Keys that a model file reads off its config: `config.x`, `getattr(config, "x")`, `eagle_config.get("x")`."""
    keys = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) in ("config", "self.config"):
            keys.add(node.attr)
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func)
        if called in ("getattr", "hasattr") and "config" in ast.unparse(node.args[0]):
            keys |= _strings(node.args[1:2])
        if called.endswith("config.get"):
            keys |= _strings(node.args[:1])
    return keys


def _strings(nodes: Iterable[ast.expr]) -> set[str]:
    return {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}


def render_table(per_release: dict[str, dict[str, str]]) -> str:
    """The source of `aux_layer_table.py`: only where a class's behaviour changes."""
    lines = []
    for name in sorted({name for classes in per_release.values() for name in classes}):
        changes: list[tuple[str, str | None]] = []
        for release, classes in per_release.items():
            found = classes.get(name)
            if found != (changes[-1][1] if changes else None):
                changes.append((release, found))
        entries = [f'("{release}", {_quoted(found)})' for release, found in changes]
        if len(entries) == 1:
            lines.append(f'    "{name}": ({entries[0]},),')
        else:
            lines.append(
                f'    "{name}": (' + "".join(f"\n        {entry}," for entry in entries) + "\n    ),"
            )
    first, last = next(iter(per_release)), list(per_release)[-1]
    return TEMPLATE.format(first=first, last=last, lines="\n".join(lines))


def _quoted(found: str | None) -> str:
    return f'"{found}"' if found is not None else "None"


TEMPLATE = '''"""How SGLang's target classes capture aux hidden states, release by release.

Written by `scripts/sglang_capabilities.py --all --write` from the wheels of sglang {first} to {last}: each class's own
`set_eagle3_layers_to_capture` was run over many lists of ids. For each class: from which release on it behaves how
(names of `aux_layers.BEHAVIOURS`; None: it captures nothing).
"""

from __future__ import annotations

from collections.abc import Mapping

TARGET_CLASSES: Mapping[str, tuple[tuple[str, str | None], ...]] = {{
{lines}
}}
'''


def main(
    versions: Annotated[list[str] | None, typer.Argument(help="Releases to look at.")] = None,
    all_releases: Annotated[bool, typer.Option("--all", help="All releases that the package knows.")] = False,
    write: Annotated[bool, typer.Option(help="Rewrite the table of target classes (needs --all).")] = False,
    wheels: Annotated[Path | None, typer.Option(help="Where wheels are, and stay.")] = None,
) -> None:
    """Prints each release's capabilities and target classes, and whether the package's tables agree."""
    wanted = list(RELEASES) if all_releases else list(versions or ())
    per_release: dict[str, dict[str, str]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        for version in wanted:
            wheel = fetch_wheel(version, wheels or Path(scratch))
            derived = derive_capabilities(version, wheel)
            per_release[version] = derive_target_classes(TargetClasses(wheel))
            agrees = version in RELEASES and derived == capabilities(version)
            typer.echo(f"{version}: {'as in the table' if agrees else derived}")
            typer.echo(f"  {len(per_release[version])} target classes", err=True)
    if write and all_releases:
        TABLE.write_text(render_table(per_release), encoding="utf-8")
    elif len(wanted) == 1:
        for name, found in per_release[wanted[0]].items():
            typer.echo(f"  {name}: {found}")


if __name__ == "__main__":
    typer.run(main)
