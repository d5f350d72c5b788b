"""What each SGLang release reads and computes of an EAGLE-3 draft.

Derived from the wheels by `scripts/sglang_capabilities.py`, which a maintainer runs to add a release; a test derives
it again for several releases and compares.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from packaging.version import InvalidVersion, Version

from eagle3_export.errors import UsageError

RELEASES: tuple[str, ...] = (
    *("0.4.10", "0.4.10.post1", "0.4.10.post2"),
    *("0.5.1", "0.5.1.post1", "0.5.1.post2", "0.5.1.post3", "0.5.2"),
    *("0.5.3", "0.5.3.post1", "0.5.3.post2", "0.5.3.post3"),
    *("0.5.4", "0.5.4.post1", "0.5.4.post2", "0.5.4.post3"),
    *("0.5.5", "0.5.5.post1", "0.5.5.post2", "0.5.5.post3"),
    *("0.5.6", "0.5.6.post1", "0.5.6.post2", "0.5.7", "0.5.8", "0.5.8.post1", "0.5.9"),
    *("0.5.10", "0.5.10.post1", "0.5.11", "0.5.12", "0.5.12.post1", "0.5.13", "0.5.13.post1"),
    *("0.5.14", "0.5.15", "0.5.15.post1", "0.5.16", "0.5.17", "0.5.18", "0.5.19"),
    *("0.5.20", "0.5.21", "0.5.22", "0.5.23"),
)
OLDEST, NEWEST = RELEASES[0], RELEASES[-1]
# The release that exports are for unless the user names one.
DEFAULT_SGLANG_VERSION = NEWEST

# Releases on which the plugin's classes were run against real SGLang by this package's own tests.
PLUGIN_PROVEN_ON: tuple[str, ...] = (
    *("0.5.16", "0.5.17", "0.5.18", "0.5.19", "0.5.20", "0.5.21", "0.5.22", "0.5.23"),
)


@dataclass(frozen=True, slots=True)
class Capabilities:
    """One release. Sources are files of its wheel, below `sglang/srt/`.

    Attributes:
        multiple_layers: more than one decoder layer (`models/llama_eagle3.py`; before, it raises).
        fc_norm: reads that key (same file, `LlamaModel.__init__`).
        norm_output: reads that key (same place).
        aux_count: takes any number of aux hidden states (same place).
        norm_before_fc: reads that key (same place).
        window_flag: `--speculative-draft-window-size` gives the draft's layers a window (same file).
        rope_parameters: reads that notation (`models/llama.py`, `LlamaDecoderLayer.__init__`).
        plugins: loads entry points of group `sglang.srt.plugins` (`plugins/__init__.py`).
        draft_quantization_flag: `--speculative-draft-model-quantization` (`server_args.py` and others).
        transformers: the release that it pins.
    """

    version: str
    multiple_layers: bool
    fc_norm: bool
    norm_output: bool
    aux_count: bool
    norm_before_fc: bool
    window_flag: bool
    rope_parameters: bool
    plugins: bool
    draft_quantization_flag: bool
    transformers: str

    def knows(self, flag: str) -> bool:
        """Whether the server takes a flag of those that launch arguments may hold."""
        capability = _FLAGS.get(flag)
        return capability is None or bool(getattr(self, capability))

    @property
    def runs_plugin(self) -> bool:
        """Whether the plugin's classes can be built on this release's draft class."""
        return self.plugins and self.multiple_layers

    @property
    def reads_theta(self) -> bool:
        """Whether theta reaches the draft: transformers 5 keeps it in `rope_parameters` and nowhere else."""
        return self.rope_parameters or Version(self.transformers).major < 5


# Server flag -> the capability that it came with. Every release in the table takes the others that launch arguments
# may hold.
_FLAGS: Mapping[str, str] = MappingProxyType(
    {
        "--speculative-draft-window-size": "window_flag",
        "--speculative-draft-model-quantization": "draft_quantization_flag",
    }
)
# Capability -> first release that has it; every later one has it too.
_SINCE: Mapping[str, str] = MappingProxyType(
    {
        "draft_quantization_flag": "0.5.7",
        "rope_parameters": "0.5.10",
        "plugins": "0.5.11",
        "multiple_layers": "0.5.12",
        "fc_norm": "0.5.12",
        "norm_output": "0.5.12",
        "aux_count": "0.5.12",
        "window_flag": "0.5.12",
        "norm_before_fc": "0.5.17",
    }
)
# transformers as pinned: first release with that pin -> version.
_TRANSFORMERS: Mapping[str, str] = MappingProxyType(
    {
        "0.4.10": "4.54.1",
        "0.5.1": "4.55.2",
        "0.5.2": "4.56.1",
        "0.5.3": "4.57.0",
        "0.5.3.post2": "4.57.1",
        "0.5.6.post1": "5.0.0rc0",
        "0.5.6.post2": "4.57.1",
        "0.5.10": "5.3.0",
        "0.5.11": "5.6.0",
        "0.5.13": "5.8.1",
        "0.5.15": "5.12.1",
        "0.5.22": "5.19.0",
    }
)


def parse_version(text: str) -> Version:
    """The version that `text` spells.

    Raises:
        UsageError: it is no version.
    """
    try:
        return Version(text)
    except InvalidVersion:
        raise UsageError(
            f"sglang_version {text!r} is not a version.", remedy=f"Name a release, such as {NEWEST}."
        ) from None


# The tables are compared with again and again; parsing a version costs 40 µs.
_released = functools.lru_cache(maxsize=None)(Version)


@functools.lru_cache(maxsize=256)
def capabilities(sglang_version: str) -> Capabilities:
    """The capabilities of a release: of the nearest known one at or below it, of the oldest for older ones.

    Raises:
        UsageError: not a version.
    """
    version = max(parse_version(sglang_version), _released(OLDEST))
    known = [release for release in RELEASES if _released(release) <= version][-1]
    flags = {name: _released(since) <= _released(known) for name, since in _SINCE.items()}
    pins = [pin for since, pin in _TRANSFORMERS.items() if _released(since) <= _released(known)]
    return Capabilities(version=known, transformers=pins[-1], **flags)


def releases_up_to(sglang_version: str) -> list[str]:
    """Known releases up to and including `sglang_version`, oldest first."""
    version = parse_version(sglang_version)
    return [release for release in RELEASES if _released(release) <= version]
