"""Which run a directory's exports are of, and whether the run at hand is that one.

speculators gives a run no name, and nothing may be written into its save_path. So an output directory gets an
identity when the first export comes: an id drawn once and the save_path, in index.json and in each metadata.json.
A run is taken for the same one

- at the same save_path, unless the trainer starts anew there, or every checkpoint that can be compared with one of
  several exports was saved anew and no later in training;
- at another save_path (moved, copied, mirrored) if at least one checkpoint there is one that was exported, and none
  contradicts an export of its name.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from eagle3_export.documents.schema import ExportMetadata, RunRecord
from eagle3_export.errors import CheckpointError, Eagle3ExportError, ExportInvalidError, UsageError
from eagle3_export.published import Exported, run_of
from eagle3_export.speculators_format.checkpoint import Checkpoint, read_checkpoint
from eagle3_export.speculators_format.run_files import epoch_of, find_checkpoints
from eagle3_export.speculators_format.save_point import SavePoint, save_point
from eagle3_export.storage.faults import resolved, shown
from eagle3_export.storage.fingerprint import is_same, newest_weights


def new_run(save_path: Path) -> RunRecord:
    """Draws the identity of a run."""
    return RunRecord(id=secrets.token_hex(8), save_path=shown(resolved(save_path)))


def recorded_run(exports: Sequence[Exported]) -> RunRecord | None:
    """Returns the run that most of these exports are of, for a directory whose index does not say.

    Exports without an id get a new one, of the save_path that their checkpoints lay in.
    """
    if not exports:
        return None
    save_path = Counter(export.save_path for export in exports).most_common(1)[0][0]
    known = [e.metadata.run for e in exports if e.metadata.run is not None and e.save_path == save_path]
    return known[-1] if known else RunRecord(id=secrets.token_hex(8), save_path=save_path)


def belongs_to(export: Exported, run: RunRecord, *save_paths: str) -> bool:
    """Whether an export is of a run: it has the run's id, or was made from one of its save_paths."""
    return export.run_id == run.id or export.save_path in (run.save_path, *save_paths)


def require_same_run(
    output_dir: Path,
    run: RunRecord,
    exports: Sequence[Exported],
    save_path: Path,
    *,
    fresh: bool | None = None,
    unreadable: bool = False,
) -> None:
    """Refuses a run whose exports would mix with another's.

    Args:
        output_dir: where they would mix.
        run: whose exports lie there.
        exports: those exports.
        save_path: of the run at hand.
        fresh: the trainer starts anew (True) or goes on where it was (False); None: look at the checkpoints.
        unreadable: exports lie there whose metadata.json cannot be read; they are taken for that run's.

    Raises:
        UsageError: it is another run.
    """
    if unreadable and not exports and (fresh or not _is_at(run, save_path)):
        raise _another_run(output_dir, run, save_path)
    if not exports or (fresh is False and _is_at(run, save_path)):
        return
    if fresh and any(epoch_of(export.directory.name) is not None for export in exports):
        raise _another_run(output_dir, run, save_path)  # what is only `interrupted` is begun again
    shared, contradictions = _compare(exports, save_path)
    if _is_at(run, save_path):
        same = (
            shared > 0 or contradictions == 0 or len(exports) == 1
        )  # nothing of a lone export's run would stay
    else:
        same = shared > 0 and contradictions == 0
    if not same:
        raise _another_run(output_dir, run, save_path)


def is_export_of(metadata: ExportMetadata, directory: Path, checkpoint: Checkpoint) -> bool:
    """Whether an export was made from the checkpoint as it is now.

    By what was recorded of its weight files, which a copy of either does not change; and at the same step where both
    say one. Exports of releases that recorded nothing share the modification time of their weights.

    Args:
        metadata: of the export.
        directory: of the export.
        checkpoint: as it was read just now.
    """
    step = checkpoint.training_state.global_step if checkpoint.training_state else None
    if None not in (step, metadata.global_step) and step != metadata.global_step:
        return False
    recorded = metadata.source.fingerprint
    if recorded is None:
        modified = newest_weights(checkpoint.directory)
        return modified is not None and modified == newest_weights(directory)
    return is_same(
        (source.file for source in checkpoint.tensors.values()),
        size=recorded.size,
        modified_ns=recorded.modified_ns,
        sample=recorded.sample_digest,
    )


def require_export_of(metadata: ExportMetadata, directory: Path, checkpoint: Checkpoint) -> None:
    """Refuses an export that was not made from the checkpoint as it is now.

    Args:
        metadata: of the export.
        directory: of the export.
        checkpoint: as it was read just now.

    Raises:
        ExportInvalidError: it was made from something else.
    """
    if not is_export_of(metadata, directory, checkpoint):
        made_from, asked = metadata.source.checkpoint, shown(checkpoint.directory)
        saved_again = made_from == asked
        raise ExportInvalidError(
            f"{shown(directory)} is an export of "
            + (f"an earlier save of {asked}." if saved_again else f"{made_from}, not of {asked}."),
            why="It would get the numbers of other weights.",
            remedy=f"Export again: eagle3-export convert {asked} {shown(directory)} --overwrite"
            if saved_again
            else f"Name its own export, or make one: eagle3-export convert {asked} OUT",
        )


def _compare(exports: Sequence[Exported], save_path: Path) -> tuple[int, int]:
    """Counts the checkpoints that were exported, and those that contradict an export of their name."""
    by_name = {export.directory.name: export for export in exports}
    shared = contradictions = 0
    try:
        checkpoints = find_checkpoints(save_path)
    except CheckpointError:
        checkpoints = []
    if not checkpoints and run_of(save_path) == save_path:
        checkpoints = [save_path]
    for path in checkpoints:
        export = by_name.get(path.name)
        if export is None:
            continue
        try:
            checkpoint = read_checkpoint(path)
        except Eagle3ExportError:
            continue  # being written, or damaged
        if is_export_of(export.metadata, export.directory, checkpoint):
            shared += 1
        else:
            contradictions += _contradicts(export.metadata, save_point(checkpoint))
    return shared, contradictions


def _contradicts(export: ExportMetadata, point: SavePoint) -> bool:
    """Whether a checkpoint that is not the exported one cannot be a later save of its epoch either."""
    if point.global_step is not None and export.global_step is not None:
        # An epoch ends once. In the middle of it, or after an interrupt, it is saved again later on.
        ends = point.kind == export.source.kind == "end_of_epoch"
        return ends or point.global_step <= export.global_step
    # With --save-best an epoch is saved once. Otherwise releases before 0.7 record no step.
    return point.kind == export.source.kind == "best"


def _is_at(run: RunRecord, save_path: Path) -> bool:
    return run.save_path == shown(resolved(save_path))


def _another_run(output_dir: Path, run: RunRecord, save_path: Path) -> UsageError:
    here = shown(resolved(save_path))
    which = "an earlier run of" if _is_at(run, save_path) else "the run of"
    return UsageError(
        f"{shown(output_dir)} holds the exports of {which} {run.save_path}, not of the run that is in {here} now.",
        why="Two runs never mix: one would replace the other's exports, and one index would list both.",
        remedy="Choose another output directory, or move that one away.",
    )
