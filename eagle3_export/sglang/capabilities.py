"""What each SGLang release reads and computes of an EAGLE-3 draft."""

from __future__ import annotations

from dataclasses import dataclass

from packaging.version import InvalidVersion, Version

from eagle3_export.errors import UsageError

OLDEST = "0.4.10"
NEWEST = "0.5.23"
RELEASES: tuple[str, ...] = (
    "0.4.10", "0.4.10.post1", "0.4.10.post2", "0.5.1.post1", "0.5.1.post2", "0.5.1.post3", "0.5.2", "0.5.3.post1",
    "0.5.3.post2", "0.5.3.post3", "0.5.4", "0.5.4.post1", "0.5.4.post2", "0.5.4.post3", "0.5.5", "0.5.5.post1",
    "0.5.5.post2", "0.5.5.post3", "0.5.6", "0.5.6.post1", "0.5.6.post2", "0.5.7", "0.5.8", "0.5.8.post1", "0.5.9",
    "0.5.10", "0.5.10.post1", "0.5.11", "0.5.12", "0.5.12.post1", "0.5.13", "0.5.13.post1", "0.5.14", "0.5.15",
    "0.5.15.post1", "0.5.16", "0.5.17", "0.5.18", "0.5.19", "0.5.20", "0.5.21", "0.5.22", "0.5.23",
)  # fmt: skip

# Releases on which the plugin's classes were run against real SGLang by this package's own tests.
PLUGIN_PROVEN_ON: tuple[str, ...] = ("0.5.23",)


@dataclass(frozen=True, slots=True)
class Capabilities:
    """One release's EAGLE-3 draft class, `models/llama_eagle3.py`.

    Attributes:
        multiple_layers: more than one decoder layer.
        fc_norm, norm_output, aux_count: knows `fc_norm`, `norm_output`, other than three aux hidden states.
        norm_before_fc: knows `norm_before_fc`.
        window_flag: has `--speculative-draft-window-size` for this class.
        draft_quantization_flag: has `--speculative-draft-model-quantization`.
        plugins: loads entry points of group `sglang.srt.plugins`.
    """

    version: str
    multiple_layers: bool
    fc_norm: bool
    norm_output: bool
    aux_count: bool
    norm_before_fc: bool
    window_flag: bool
    draft_quantization_flag: bool
    plugins: bool


def parse_version(text: str) -> Version:
    """Raises UsageError where `text` is no version."""
    try:
        return Version(text)
    except InvalidVersion:
        raise UsageError(
            f"sglang_version {text!r} is not a version.", remedy=f"Name a release, such as {NEWEST}."
        ) from None


def capabilities(sglang_version: str) -> Capabilities:
    """The capabilities of a release; of the newest known one for releases after it.

    Raises:
        UsageError: not a version.
    """
    version = min(parse_version(sglang_version), Version(NEWEST))
    from_0_5_12 = version >= Version("0.5.12")
    return Capabilities(
        version=str(version),
        multiple_layers=from_0_5_12,
        fc_norm=from_0_5_12,
        norm_output=from_0_5_12,
        aux_count=from_0_5_12,
        norm_before_fc=version >= Version("0.5.17"),
        window_flag=from_0_5_12,
        draft_quantization_flag=version >= Version("0.5.6"),
        plugins=from_0_5_12,
    )


def releases_up_to(sglang_version: str) -> list[str]:
    """Known releases up to and including `sglang_version`, oldest first."""
    version = parse_version(sglang_version)
    return [release for release in RELEASES if Version(release) <= version]
