"""`speculators train` with the export attached: `eagle3-export train` and `python -m eagle3_export.train`."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, NoReturn

import yaml

from eagle3_export.compatibility.plan import check_training, raise_if_incompatible
from eagle3_export.config import (
    BLOCK_NAME,
    ExportConfig,
    is_nearly_our_name,
    parse_export_block,
    read_export_block,
    validated,
)
from eagle3_export.errors import Eagle3ExportError, UsageError
from eagle3_export.sglang.target import ServingTarget
from eagle3_export.speculators_format.verifier import find_verifier
from eagle3_export.training.rank_environment import complete_launch_environment, is_rank_zero

if TYPE_CHECKING:
    from eagle3_export.callback import SGLangExportCallback

# How long the other ranks stay after a refusal; the launcher ends them as soon as rank 0 has told it.
RANK_ZERO_SPEAKS_SECONDS = 10.0
FLAG = "--" + BLOCK_NAME.replace("_", "-")


def main(arguments: Sequence[str] | None = None) -> int:
    """Trains with the export attached.

    Args:
        arguments: as on the command line, without the program's name. Flags of ours begin with
            `--sglang-export.`; all others go to speculators as they are.

    Returns:
        0 done; 1 refused before the first step, or `on_failure: raise` and an export failed; 2 wrong configuration.

    Raises:
        SystemExit: speculators found its own arguments wrong (2), or printed what was asked for (0).
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        complete_launch_environment()
        theirs, ours = split_arguments(given)
        theirs = _with_home_expanded(theirs)
        path = config_path(theirs)
        written = None if path is None else read_export_block(path)
        if "-h" in theirs or "--help" in theirs:
            print(_help())
        if written is False:
            return _train_without_export(f"{path}", ours, given, theirs)
        block = ours if written is None else {**written, **ours} if isinstance(written, dict) else written
        config = parse_export_block(block, origin=path or "command line")
        return _train(config, block, given, theirs)
    except UsageError as error:
        return _complain(error, 2, everywhere=False)
    except Eagle3ExportError as error:
        return _complain(error, 1, everywhere=False)


def split_arguments(arguments: Sequence[str]) -> tuple[list[str], dict[str, Any]]:
    """Parts the command line.

    Args:
        arguments: all of it.

    Returns:
        speculators' arguments, as they were given, and the values of our own keys, validated.

    Raises:
        UsageError: a flag of ours that does not exist or has a wrong value or none.
    """
    parser = _FlagParser(add_help=False, allow_abbrev=False, argument_default=argparse.SUPPRESS)
    for key, field in ExportConfig.model_fields.items():
        several = "+" if isinstance(field.default, tuple) else None
        parser.add_argument(_flag(key), dest=key, nargs=several)
    found, theirs = parser.parse_known_args(arguments)
    for argument in theirs:
        _refuse_unknown_flag(argument)
    values = {key: _value(value) for key, value in vars(found).items()}
    config = validated(values, origin="command line", spelling=_flag, from_text=True)
    return theirs, config.model_dump(mode="json", include=set(values))


class _FlagParser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message[:1].upper()}{message[1:]}: it needs a value.")


def _flag(key: str) -> str:
    return f"{FLAG}.{key.replace('_', '-')}"


def _value(given: str | list[str]) -> str | list[str] | None:
    """Returns what to validate: a list may be written `1 3 5`, `1,3,5` or `[1, 3, 5]`, and None as `null`."""
    if isinstance(given, list):
        return [item.strip() for item in ",".join(given).strip("[]").split(",")]
    return None if given == "null" else given


def _refuse_unknown_flag(argument: str) -> None:
    flag = argument.partition("=")[0]
    if not flag.startswith("-") or not is_nearly_our_name(flag.partition(".")[0]):
        return
    known = [_flag(key) for key in ExportConfig.model_fields]
    near = get_close_matches(flag.replace("_", "-"), known, n=1, cutoff=0.8)
    raise UsageError(
        f"Unknown flag {flag}.", remedy=f"Did you mean {near[0]}?" if near else f"Known: {', '.join(known)}."
    )


def _with_home_expanded(arguments: Sequence[str]) -> list[str]:
    """Expands `~` in the value of `--config`, as the shell does for an unquoted `--config ~/run.yaml`."""
    expanded: list[str] = []
    for argument in arguments:
        flag = "--config=" if argument.startswith("--config=") else ""
        if flag or expanded[-1:] == ["--config"]:
            # No Path: speculators gets the text as it was written.
            argument = flag + os.path.expanduser(argument.removeprefix(flag))  # noqa: PTH111
        expanded.append(argument)
    return expanded


def config_path(arguments: Sequence[str]) -> str | None:
    """Returns the value of `--config` in speculators' arguments, the last one given, or None without one."""
    found = None
    for argument, following in zip(arguments, [*arguments, None][1:], strict=True):
        if argument == "--config":
            found = following
        elif argument.startswith("--config="):
            found = argument.removeprefix("--config=")
    return found


def _train(config: ExportConfig, block: Mapping[str, Any], given: list[str], theirs: list[str]) -> int:
    with _resolved(theirs, given, block) as train_config:
        config.resolve_output_dir(train_config.trainer.save_path)
        _refuse_early(train_config.flatten(), config)

        from eagle3_export.callback import SGLangExportCallback
        from eagle3_export.training.cpu_rehearsal import enable_cpu_rehearsal

        enable_cpu_rehearsal()
        callback = SGLangExportCallback(config)
        try:
            _run(train_config, callback)
        except Eagle3ExportError as error:
            return _complain(error, 2 if isinstance(error, UsageError) else 1, everywhere=callback.attached)
    return 0


def _train_without_export(path: str, ours: Mapping[str, Any], given: list[str], theirs: list[str]) -> int:
    """Trains as `speculators train` does, because the config has `sglang_export: false`."""
    if ours:
        raise UsageError(
            f"{path} switches the export off ({BLOCK_NAME}: false), and {_flag(next(iter(ours)))} is given.",
            remedy="Remove one of them.",
        )
    with _resolved(theirs, given, False) as train_config:
        from speculators.train import cli

        from eagle3_export.training.cpu_rehearsal import enable_cpu_rehearsal

        if is_rank_zero():
            message = f"eagle3-export train: nothing will be exported; {path} has {BLOCK_NAME}: false."
            print(message, file=sys.stderr, flush=True)
        enable_cpu_rehearsal()
        cli.main(train_config)
    return 0


@contextmanager
def _resolved(theirs: list[str], given: list[str], block: Any) -> Iterator[Any]:
    """Gives speculators' `TrainConfig` of these arguments; while it is used, our block goes into every run.yaml."""
    try:
        from speculators.train.config import TrainConfig
    except ImportError as error:
        raise UsageError(
            f"speculators' trainer cannot be imported: {error}.",
            remedy="pip install 'eagle3-export[train]' (speculators 0.8 or 0.9).",
        ) from error
    with _block_kept_in_run_yaml(block):
        train_config = TrainConfig.resolve(theirs)
        train_config._argv = [sys.argv[0], *given]
        yield train_config


def _refuse_early(arguments: Mapping[str, Any], config: ExportConfig) -> None:
    """Refuses what the arguments alone rule out, before a verifier of many gigabytes is loaded.

    The model that is then built is checked again when the callback attaches.

    Raises:
        IncompatibleDraftError: what would be trained cannot be served.
    """
    if config.on_incompatible != "error":
        return
    search = find_verifier(arguments.get("verifier_name_or_path"))
    target = ServingTarget.found(config.sglang_version, config.runtime, search)
    raise_if_incompatible(check_training(arguments, target))


def _run(train_config: Any, callback: SGLangExportCallback) -> None:
    """Runs `speculators.train.cli.main` with the callback attached to the trainer that it builds."""
    from speculators.train import cli

    trainer_class = cli.Trainer

    def build_trainer(*args: Any, **kwargs: Any) -> Any:
        trainer = trainer_class(*args, **kwargs)
        callback.attach(trainer, finish_after_training=False)
        return trainer

    with _replaced(cli, "Trainer", build_trainer):
        cli.main(train_config)
    # Only now: cli.main has destroyed the process group, which all ranks do together.
    callback.finish()


@contextmanager
def _replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    original = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, original)


def _block_kept_in_run_yaml(block: Any) -> AbstractContextManager[None]:
    """Puts our block into the run.yaml that speculators writes beside the checkpoints, and into `--dump-config`.

    Both come from `speculators.train.config.artifacts.dump_yaml` (0.8.0, 0.8.1, 0.9.0), which leaves out all but
    its own `train:` block.
    """
    from speculators.train.config import artifacts

    theirs = artifacts.dump_yaml

    def dump_yaml(config: Any) -> str:
        return str(theirs(config)) + yaml.safe_dump({BLOCK_NAME: block}, sort_keys=False)

    return _replaced(artifacts, "dump_yaml", dump_yaml)


def _complain(error: Eagle3ExportError, status: int, *, everywhere: bool) -> int:
    if everywhere or is_rank_zero():
        print(f"eagle3-export train: {error}", file=sys.stderr, flush=True)
    else:
        # A launcher ends every rank as soon as one has failed, rank 0 too, which is to say why.
        time.sleep(RANK_ZERO_SPEAKS_SECONDS)
    return status


def _help() -> str:
    fields = ExportConfig.model_fields.items()
    lines = [f"  {FLAG}.{key.replace('_', '-')}: {field.description}" for key, field in fields]
    return "\n".join(["Options of the export; speculators' own follow:", *lines, ""])


if __name__ == "__main__":
    raise SystemExit(main())
