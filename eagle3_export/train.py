"""``speculators train`` with the export attached: ``eagle3-export train`` and ``python -m eagle3_export.train``."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any

import yaml

from eagle3_export.compatibility.plan import check_training
from eagle3_export.config import BLOCK_NAME, ExportConfig, parse_export_block, read_export_block
from eagle3_export.errors import Eagle3ExportError, IncompatibleDraftError, UsageError
from eagle3_export.sglang.target import ServingTarget
from eagle3_export.speculators_format.verifier import read_verifier
from eagle3_export.training.rank_environment import complete_launch_environment, is_rank_zero

if TYPE_CHECKING:
    from eagle3_export.callback import SGLangExportCallback

FLAG = "--" + BLOCK_NAME.replace("_", "-")
# Keys whose flag is not taken as a string.
PARSED_KEYS = ("num_steps", "keep_last")


def main(arguments: Sequence[str] | None = None) -> int:
    """Train with the export attached.

    Args:
        arguments: as on the command line, without the program's name. Flags of ours begin with
            ``--sglang-export.``; all others go to speculators untouched.

    Returns:
        0 done; 1 refused before the first step, or ``on_failure: raise`` and an export failed; 2 wrong configuration.

    Raises:
        SystemExit: speculators found its own arguments wrong (2), or printed what was asked for (0).
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        complete_launch_environment()
        theirs, ours = split_arguments(given)
        path = config_path(theirs)
        written = read_export_block(path) if path is not None else None
        block = {**written, **ours} if isinstance(written, dict) else written or ours
        config = parse_export_block(block, origin=path or "command line")
        if "-h" in theirs or "--help" in theirs:
            print(_help())
        return _train(config, block, given, theirs)
    except UsageError as error:
        return _complain(error, 2, everywhere=False)


def split_arguments(arguments: Sequence[str]) -> tuple[list[str], dict[str, Any]]:
    """Part the command line in speculators' arguments, untouched, and the values of our own keys.

    Raises:
        UsageError: a flag of ours that does not exist or has no value.
    """
    theirs: list[str] = []
    ours: dict[str, Any] = {}
    rest = list(arguments)
    while rest:
        argument = rest.pop(0)
        if not argument.startswith(FLAG):
            theirs.append(argument)
            continue
        flag, equals, value = argument.partition("=")
        values = [value] if equals else []
        while not equals and rest and not rest[0].startswith("--"):
            values.append(rest.pop(0))
        ours[_key_of(flag)] = _value_of(flag, values)
    return theirs, ours


def _key_of(flag: str) -> str:
    known = {f"{FLAG}.{key.replace('_', '-')}": key for key in ExportConfig.model_fields}
    if flag not in known:
        raise UsageError(f"Unknown flag {flag}.", remedy=f"Known: {', '.join(known)}.")
    return known[flag]


def _value_of(flag: str, values: list[str]) -> Any:
    if not values:
        raise UsageError(f"{flag} needs a value.")
    key = _key_of(flag)
    if key == "num_steps":
        text = ",".join(values).strip("[]")
        return [_parsed(item) for item in text.split(",")]
    if len(values) > 1:
        raise UsageError(f"{flag} takes one value, not {len(values)} ({' '.join(values)}).")
    return _parsed(values[0]) if key in PARSED_KEYS else values[0]


def _parsed(text: str) -> Any:
    """The text as YAML; as it is where it is none, for the checks of the block to name it."""
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        return text


def config_path(arguments: Sequence[str]) -> str | None:
    """The value of ``--config`` in speculators' arguments, the last one given."""
    found = None
    for argument, following in zip(arguments, [*arguments, None][1:], strict=True):
        if argument == "--config":
            found = following
        elif argument.startswith("--config="):
            found = argument.removeprefix("--config=")
    return found


def _train(config: ExportConfig, block: Mapping[str, Any], given: list[str], theirs: list[str]) -> int:
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
        config.resolve_output_dir(train_config.trainer.save_path)
        try:
            _refuse_early(train_config.flatten(), config)
        except IncompatibleDraftError as error:
            return _complain(error, 1, everywhere=False)

        from eagle3_export.callback import SGLangExportCallback
        from eagle3_export.training.cpu_rehearsal import enable_cpu_rehearsal

        enable_cpu_rehearsal()
        callback = SGLangExportCallback(config)
        try:
            _run(train_config, callback)
        except Eagle3ExportError as error:
            return _complain(error, 2 if isinstance(error, UsageError) else 1, everywhere=callback.attached)
    return 0


def _refuse_early(arguments: Mapping[str, Any], config: ExportConfig) -> None:
    """What the arguments alone rule out, said before a verifier of many gigabytes is loaded.

    The model that is then built is checked again when the callback attaches.
    """
    if config.on_incompatible != "error":
        return
    verifier = read_verifier(arguments.get("verifier_name_or_path"))
    target = ServingTarget(config.sglang_version, config.runtime, verifier)
    findings = check_training(arguments, verifier, target)
    obstacles = [finding for finding in findings if finding.level == "incompatible"]
    if obstacles:
        raise IncompatibleDraftError(obstacles)


def _run(train_config: Any, callback: SGLangExportCallback) -> None:
    """``speculators.train.cli.main`` with the callback attached to the trainer that it builds."""
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


def _block_kept_in_run_yaml(block: Mapping[str, Any]) -> AbstractContextManager[None]:
    """Have our block in the ``run.yaml`` that speculators writes beside the checkpoints and in ``--dump-config``.

    Both come from ``speculators.train.config.artifacts.dump_yaml`` (0.8.0, 0.8.1, 0.9.0), which leaves out all but
    its own ``train:`` block.
    """
    from speculators.train.config import artifacts

    theirs = artifacts.dump_yaml

    def dump_yaml(config: Any) -> str:
        return str(theirs(config)) + yaml.safe_dump({BLOCK_NAME: dict(block)}, sort_keys=False)

    return _replaced(artifacts, "dump_yaml", dump_yaml)


def _complain(error: Eagle3ExportError, status: int, *, everywhere: bool) -> int:
    if everywhere or is_rank_zero():
        print(f"eagle3-export train: {error}", file=sys.stderr, flush=True)
    return status


def _help() -> str:
    fields = ExportConfig.model_fields.items()
    lines = [f"  {FLAG}.{key.replace('_', '-')}: {field.description}" for key, field in fields]
    return "\n".join(["Options of the export; speculators' own follow:", *lines, ""])


if __name__ == "__main__":
    raise SystemExit(main())
