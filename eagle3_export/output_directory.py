"""The output directory of a run: its exports, `latest`, `best` and `index.json`, and who may write there."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from eagle3_export.documents.best import BY_TRAINING, best_of, in_training_order
from eagle3_export.documents.files import (
    BEST,
    INDEX_FILE,
    KEEP_MARKER,
    LATEST,
    METADATA_FILE,
    foreign_entries,
    is_export,
    is_index,
)
from eagle3_export.documents.index import build_index, with_lines
from eagle3_export.documents.json_files import read_index, read_metadata, to_json
from eagle3_export.documents.metadata import NOT_VALIDATED, with_metrics
from eagle3_export.documents.schema import ExportIndex, ExportMetadata, RunRecord
from eagle3_export.errors import ExportInvalidError, StorageError, UsageError
from eagle3_export.locate import is_output_directory, locate_export
from eagle3_export.published import (
    Exported,
    Stamp,
    published_export,
    published_exports,
    read_exports,
    replace_documents,
    run_of,
    stamp,
    stamp_of,
)
from eagle3_export.run_identity import (
    belongs_to,
    is_export_of,
    new_run,
    recorded_run,
    require_same_run,
)
from eagle3_export.speculators_format.run_files import epoch_of
from eagle3_export.storage.faults import os_errors, resolved, shown
from eagle3_export.storage.leftovers import clean_leftovers, is_directory
from eagle3_export.storage.lock import OutputBusyError, output_lock
from eagle3_export.storage.publish import (
    discard_directory,
    publish_directory,
    remove_staging,
    replace_file,
    set_pointer,
    staging_directory,
)
from eagle3_export.storage.regular_file import is_regular_file
from eagle3_export.storage.retention import outdated

if TYPE_CHECKING:
    from typing_extensions import Self

    from eagle3_export.estimates.acceptance import AccuracySource
    from eagle3_export.estimates.replay import Replay
    from eagle3_export.speculators_format.checkpoint import Checkpoint

__all__ = [
    "OutputDirectory",
    "is_output_directory",
    "locate_export",
    "read_exports",
    "replace_documents",
]

logger = logging.getLogger(__name__)


class OutputDirectory:
    """Where the exports of one run lie. A context manager: inside it, nobody else writes there.

    On entry it takes the lock, removes what a killed export left, and makes sure that the directory holds no other
    run's exports. It replaces and prunes exports of this run only, and none that holds anything of the user's.

    Attributes:
        path: the directory.
        run: whose exports these are, once it has been entered.
    """

    def __init__(
        self,
        path: Path,
        save_path: Path | None,
        *,
        keep_last: int | None = None,
        fresh: bool | None = None,
        indexed: bool = True,
    ) -> None:
        """Names the directory; `with` opens it.

        Args:
            path: the directory; it need not exist.
            save_path: where the run saves its checkpoints; None takes the run that the exports are of.
            keep_last: how many exports stay besides the newest and the best; None keeps all.
            fresh: the trainer starts anew (True) or resumes (False); None where only the checkpoints can tell.
            indexed: it is a run's output directory, with an index and pointers; else exports of anything may lie here.
        """
        self.path = path
        self.run: RunRecord | None = None
        self._save_path = save_path
        self._keep_last = keep_last
        self._fresh = fresh
        self._indexed = indexed
        self._was_this_runs = False
        self._taken: Path | None = None
        self._held = ExitStack()
        self._told: set[str] = set()
        self._newest: str | None = None
        # Of the index as this exporter wrote it; None where it has not, or others have changed documents since.
        self._index_stamp: Stamp | None = None

    @classmethod
    def around(cls, export: Path, checkpoint: Path | None = None) -> Self:
        """The directory that one export lies in, or will lie in.

        Args:
            export: the export's directory.
            checkpoint: what it is made from; None for an export that exists.
        """
        parent = export.parent
        # Its index may have been deleted; then the pointers say that it is a run's.
        indexed = is_index(parent / INDEX_FILE) or any(_is_pointer(parent / p) for p in (LATEST, BEST))
        around = cls(parent, None if checkpoint is None else run_of(checkpoint), indexed=indexed)
        around._taken = export
        return around

    def __enter__(self) -> Self:
        with ExitStack() as opening:
            try:
                opening.enter_context(output_lock(self.path))
            except OutputBusyError:
                # Somebody exports there. Beside a run without an index a new export does no harm.
                if self._indexed or (self._taken is not None and os.path.lexists(self._taken)):
                    raise
            else:
                for path in clean_leftovers(self.path, (export.directory for export in self._all_exports())):
                    logger.info("Cleaned up what a killed export had left: %s", shown(path))
            self._index_stamp = None
            self.run = self._identify()
            self._fresh = False  # what is here from now on is its own
            self._held = opening.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._held.close()

    # Whose exports these are ----------------------------------------------------------------------------------

    def require_same_run(self) -> None:
        """Refuses a run whose exports would mix with those that are here. Only reads.

        Raises:
            UsageError: another run's exports are here, and the message names both; or it cannot be told whose they are.
        """
        exports = self._all_exports()
        known = self._recorded_run(exports)
        if self._save_path is None or not self._indexed:
            return
        if known is None and self._holds_unreadable(exports):
            raise UsageError(
                f"{shown(self.path)} holds exports whose {METADATA_FILE} cannot be read, and no {INDEX_FILE} that says"
                " of which run they are.",
                why="They may be another run's, and would be replaced.",
                remedy="Move them away, or choose another output directory.",
            )
        if known is not None:
            require_same_run(
                self.path,
                known,
                [export for export in exports if belongs_to(export, known)],
                self._save_path,
                fresh=self._fresh,
                unreadable=self._holds_unreadable(exports),
            )

    def _holds_unreadable(self, readable: Sequence[Exported]) -> bool:
        known = {export.directory.name for export in readable}
        with os_errors("Listing the exports in", self.path), suppress(FileNotFoundError):
            return any(child.name not in known and is_export(child) for child in self.path.iterdir())
        return False

    def _identify(self) -> RunRecord | None:
        self.require_same_run()
        exports = self._all_exports()
        known = self._recorded_run(exports)
        if self._save_path is None:
            return known
        run = new_run(self._save_path)
        if not self._indexed:
            return run
        if known is not None:
            self._was_this_runs = known.save_path == run.save_path
            if known.save_path != run.save_path:
                where = (shown(self.path), known.save_path, run.save_path)
                logger.warning("%s holds the exports of the run in %s, which is in %s now", *where)
            run = RunRecord(id=known.id, save_path=run.save_path)
            self._adopt(run, [export for export in exports if belongs_to(export, run, known.save_path)])
        if self._indexed_run() != run:
            self.run = run
            self.refresh()
        return run

    def _indexed_run(self) -> RunRecord | None:
        try:
            return read_index(self.path / INDEX_FILE).run
        except ExportInvalidError:
            return None

    def _recorded_run(self, exports: Sequence[Exported]) -> RunRecord | None:
        return self._indexed_run() or recorded_run(exports)

    def _adopt(self, run: RunRecord, exports: Sequence[Exported]) -> None:
        """Writes the run into exports of it that do not name it: those of a release that knew no runs."""
        unnamed = [e for e in exports if e.metadata.run is None or e.metadata.run.id != run.id]
        for export in unnamed:
            reasons = {name: why for name, why in export.metadata.reasons.items() if name != "run"}
            named = export.metadata.model_copy(update={"run": run, "reasons": reasons})
            replace_file(export.directory / METADATA_FILE, to_json(named))
        if unnamed:
            names = ", ".join(shown(export.directory.name) for export in unnamed)
            logger.warning(
                "Taken over as exports of the run in %s, which they did not name: %s", run.save_path, names
            )

    # What is here ---------------------------------------------------------------------------------------------

    def exports(self) -> list[ExportMetadata]:
        """Returns the metadata of this run's exports, in order of training."""
        return in_training_order([export.metadata for export in self._own_exports()])

    def holds(self, name: str, checkpoint: Checkpoint) -> bool:
        """Whether the export of that name was made from this checkpoint as it is now."""
        export = published_export(self.path / name)
        return export is not None and is_export_of(export.metadata, export.directory, checkpoint)

    def outdated(self, checkpoints: Sequence[Path]) -> set[str]:
        """Returns the names of those checkpoints whose exports retention would remove at once."""
        epochs = {checkpoint.name: epoch_of(checkpoint.name) for checkpoint in checkpoints}
        return set(outdated(epochs, self._keep_last))

    def _all_exports(self, changed: Collection[str] | None = None) -> list[Exported]:
        return list(published_exports(self.path, self._told, changed=changed))

    def _own_exports(self, changed: Collection[str] | None = None) -> list[Exported]:
        exports = self._all_exports(changed)
        if self.run is None:
            return exports
        own = [export for export in exports if belongs_to(export, self.run)]
        for export in exports if len(own) < len(exports) else ():
            if not belongs_to(export, self.run):
                where = shown(export.directory)
                self._tell_once(f"{where} is of another run, {export.save_path}: it is left alone")
        return own

    def _tell_once(self, message: str) -> None:
        if message not in self._told:
            self._told.add(message)
            logger.warning("%s", message)

    # One export more ------------------------------------------------------------------------------------------

    @contextmanager
    def staging(self, name: str, *, replace: bool) -> Iterator[Path]:
        """An empty directory to build the export of that name in; `publish` ends its life, or the end of the block.

        Args:
            name: what the export will be called.
            replace: an export of that name may be replaced.

        Raises:
            StorageError: something else has the name, or the directory cannot be made.
        """
        self._require_free(name, replace)
        staged = staging_directory(self.path / name)
        try:
            yield staged
        finally:
            remove_staging(staged)

    def publish(self, staged: Path, name: str, *, replace: bool, latest: bool = True) -> None:
        """Moves a built export to its name in one rename; then index, pointers and retention follow.

        Args:
            staged: from `staging`.
            name: what the export is called.
            replace: an export of that name may be replaced.
            latest: it is the newest; else the one that training saved last is.

        Raises:
            StorageError: it could not be published, and what stands there is as it was; or it was, and the index could
                not be written or an old export not be removed.
        """
        final = self.path / name
        if os.path.lexists(final / KEEP_MARKER):
            # The user marked this export to be kept; its replacement stays marked, in the same words.
            shutil.copyfile(final / KEEP_MARKER, staged / KEEP_MARKER, follow_symlinks=False)
        seen = is_directory(final)
        try:
            publish_directory(staged, final, replace=replace)
        except StorageError:
            # Attributes lag on network filesystems: what seemed free may hold an export after all.
            if seen or not replace or not is_directory(final):
                raise
            self._require_free(name, replace)
            publish_directory(staged, final, replace=True)
        if self._indexed:
            self.refresh(latest=name if latest else None, changed=name)

    def _require_free(self, name: str, replace: bool) -> None:
        """Lets only an export of this run that holds nothing else be replaced, or an empty directory."""
        directory = self.path / name
        with os_errors("Reading", directory):
            if not is_directory(directory) or not any(directory.iterdir()):
                return  # free, or told from an export when it is published
        if not replace:
            return
        foreign = foreign_entries(directory)
        if foreign or not is_export(directory):
            found = f"holds {', '.join(map(shown, foreign[:5]))}" if foreign else "is no export"
        elif self._indexed and self.run is not None and not self._is_own(directory, self.run):
            found = f"is an export of another run than {self.run.save_path}"
        else:
            return
        raise StorageError(
            f"{shown(directory)} {found}.",
            why="Only an export of the same run is ever replaced; everything in it would be gone.",
            remedy="Choose another directory, or move it away.",
        )

    def _is_own(self, directory: Path, run: RunRecord) -> bool:
        """An export that cannot be read is this run's if the directory was, by its index."""
        export = published_export(directory)
        return self._was_this_runs if export is None else belongs_to(export, run)

    # Numbers that come later ----------------------------------------------------------------------------------

    def add_metrics(
        self,
        name: str,
        metrics: Mapping[str, Any] | None,
        *,
        source: AccuracySource = "validation",
        missing_reason: str | None = None,
        replay: Replay | None = None,
        no_replay: str | None = None,
    ) -> ExportMetadata:
        """Writes the metrics of an export's own validation into its metadata and model card, each by rename.

        Args:
            name: of the export.
            metrics: the trainer's, None if it turned out that there are none.
            source: what measured them.
            missing_reason: why there are none.
            replay: the walk over the same text; None keeps the one that the export has.
            no_replay: why there is none.

        Raises:
            ExportInvalidError: the export has no readable metadata.json.
            StorageError: a document could not be replaced.
        """
        metadata = with_metrics(
            read_metadata(self.path / name),
            metrics,
            source=source,
            missing_reason=missing_reason or NOT_VALIDATED,
            replay=replay,
            no_replay=no_replay,
        )
        replace_documents(self.path / name, metadata)
        self.refresh(changed=name)
        return metadata

    def refresh(self, *, latest: str | None = None, changed: str | None = None) -> ExportIndex:
        """Brings the index up to date, then the pointers, and prunes.

        Args:
            latest: name of the export published last; None takes the one that was named before, or else the one that
                training saved last. A save that an interrupt cut short knows no step, so its place is not known.
            changed: the only export whose documents this exporter has changed since it wrote the index. Those of the
                others are then not looked at, unless somebody else has changed some (`tell_exporter`). None, and the
                first time in any case, looks at all of them.

        Raises:
            StorageError: the index could not be written, or an old export not be removed.
        """
        found = stamp(self.path / INDEX_FILE, follow_symlinks=False)
        known = self._index_stamp is not None and found == self._index_stamp
        one = (changed,) if changed is not None and known else None
        exports = {export.candidate.name: export for export in self._own_exports(one)}
        candidates = sorted((export.candidate for export in exports.values()), key=BY_TRAINING)
        choice = best_of(candidates)
        ordered, best = [candidate.name for candidate in candidates], choice.name
        self._newest = shown(latest) if latest is not None else self._newest
        newest = self._newest if self._newest in exports else ordered[-1] if ordered else None
        gone = self._outdated(exports, {name for name in (newest, best) if name is not None})
        lines = [exports[name].index_line for name in ordered if name not in gone]
        index = build_index([], run=self.run, latest=newest, best=choice)
        self._write_index(with_lines(index, lines), found)
        for pointer, target in ((LATEST, newest), (BEST, best)):
            if target in exports:
                self._point(pointer, exports[target].directory.name)
        for name in gone:
            discard_directory(exports[name].directory)
        return index

    def _write_index(self, content: bytes, found: Stamp | None) -> None:
        """Replaces index.json, which looked like `found` before the documents were read."""
        path = self.path / INDEX_FILE
        if self._index_stamp is None or found != self._index_stamp:
            ours = path.is_symlink() or is_index(path) or _is_empty(path)
            if os.path.lexists(path) and not ours:
                self._tell_once(f"{shown(path)} is no index of ours and stays; move it away to get one")
                return
        untouched = stamp(path, follow_symlinks=False) == found
        written = replace_file(path, content)
        self._index_stamp = stamp_of(written) if untouched else None

    def _point(self, pointer: str, target: str) -> None:
        """Moves a pointer. One that cannot be made costs no export: index.json says the same."""
        link = self.path / pointer
        try:
            if os.path.lexists(link):
                found = link.readlink() if link.is_symlink() else None
                if found == Path(target):
                    return
                if found is None or len(found.parts) != 1:  # ours lead to a neighbour
                    self._tell_once(
                        f"{shown(link)} is not ours and stays; index.json names the {pointer} export"
                    )
                    return
            set_pointer(self.path, pointer, target)
        except (StorageError, OSError) as error:
            self._tell_once(
                f"There is no pointer {shown(link)}; index.json names the {pointer} export. {error}"
            )

    # Old exports ----------------------------------------------------------------------------------------------

    def _outdated(self, exports: Mapping[str, Exported], protected: set[str]) -> list[str]:
        """The exports that retention removes now: not pointed to, and with nothing of the user's in them."""
        if self._keep_last is None or len(exports) <= 1:
            return []
        # `latest` and `best` move before anything is removed.
        with os_errors("Listing", self.path):
            links = [c for c in self.path.iterdir() if c.is_symlink() and c.name not in (LATEST, BEST)]
            protected = protected | {shown(link.readlink().name) for link in links}
        names = outdated({name: epoch_of(name) for name in exports}, self._keep_last, protected)
        return [name for name in names if self._may_go(exports[name].directory)]

    def _may_go(self, directory: Path) -> bool:
        if os.path.lexists(directory / KEEP_MARKER) or not is_export(directory):
            return False
        if foreign := foreign_entries(directory):
            self._tell_once(
                f"{shown(directory)} is older than keep_last asks for and stays: it holds"
                f" {', '.join(map(shown, foreign[:5]))}"
            )
        return not foreign


def _is_pointer(link: Path) -> bool:
    """A link to a neighbour that is an export, as `latest` and `best` are."""
    return link.is_symlink() and len(link.readlink().parts) == 1 and is_export(resolved(link))


def _is_empty(path: Path) -> bool:
    """A file that a power cut left without its content."""
    return is_regular_file(path) and path.stat().st_size == 0
