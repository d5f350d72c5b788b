"""Faults and traces in the ranks of a distributed test run, as the harness asks by environment variables.

``TRACE_DIRECTORY`` names a directory for what each rank did; ``TRAINING_FAULTS`` is JSON:

- ``output``: the exporter's directory, whose filesystem is made bad for the background thread;
- ``kind``: ``slow`` (nothing moves before every other rank has left training), ``hang`` (the first operation
  never returns) or ``fail`` (EIO);
- ``group_timeout``, ``end_of_run``: seconds, in place of the product's own;
- ``pace``: seconds that every optimizer step takes longer, so that a signal finds its moment.
"""

from __future__ import annotations

import errno
import importlib.machinery
import importlib.util
import json
import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

FAULTS: dict[str, Any] = {}


def note(event: str, **values: Any) -> None:
    trace = Path(os.environ["TRACE_DIRECTORY"]) / f"rank-{os.environ.get('RANK', '0')}.jsonl"
    with trace.open("a") as file:
        file.write(json.dumps({"event": event, **values}) + "\n")


def reaches_output(target: Any) -> bool:
    path = Path(f"/proc/self/fd/{target}").readlink() if isinstance(target, int) else os.fsdecode(target)
    return str(path).startswith(FAULTS["output"])


def spoil_filesystem() -> None:
    """Every system call by which the background thread could change the output directory passes here first."""

    def others_have_left() -> bool:
        others = range(1, int(os.environ.get("WORLD_SIZE", "1")))
        traces = [Path(os.environ["TRACE_DIRECTORY"]) / f"rank-{rank}.jsonl" for rank in others]
        return all(trace.exists() and '"left training"' in trace.read_text() for trace in traces)

    def spoiled(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(target: Any, *args: Any, **kwargs: Any) -> Any:
            if threading.current_thread() is not threading.main_thread() and reaches_output(target):
                if FAULTS["kind"] == "hang":
                    note("hangs")
                    threading.Event().wait()
                if FAULTS["kind"] == "fail":
                    raise OSError(errno.EIO, os.strerror(errno.EIO), FAULTS["output"])
                while not others_have_left():
                    time.sleep(0.02)
            return original(target, *args, **kwargs)

        return call

    for name in ("open", "mkdir", "fsync", "rename", "replace", "symlink"):
        setattr(os, name, spoiled(getattr(os, name)))


PATH_EVENTS = ("open", "os.mkdir", "os.listdir", "os.scandir", "os.rename", "os.remove", "os.rmdir")


def watch_training_threads() -> None:
    """No training thread may touch the output directory, and no rank but 0 may say anything in the exporter's name."""
    is_rank_zero = os.environ.get("RANK", "0") == "0"

    def audit(event: str, arguments: tuple[Any, ...]) -> None:
        if event not in PATH_EVENTS or not isinstance(arguments[0], str | bytes):
            return
        in_training = threading.current_thread() is threading.main_thread()
        if (in_training or not is_rank_zero) and reaches_output(arguments[0]):
            note("reaches output", path=os.fsdecode(arguments[0]))

    def heard(record: logging.LogRecord) -> bool:
        note("logs", message=record.getMessage())
        return True

    sys.addaudithook(audit)
    if not is_rank_zero:
        logging.getLogger("eagle3_export").addFilter(heard)


def caller_outside_torch() -> str:
    """File of the innermost frame that is neither torch's nor this one: who entered the collective."""
    frame = sys._getframe(2)
    while frame is not None and (
        "/torch/" in frame.f_code.co_filename or frame.f_code.co_filename == __file__
    ):
        frame = frame.f_back
    return frame.f_code.co_filename if frame is not None else ""


def watch_collectives(torch_distributed: ModuleType) -> None:
    def watched(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def collective(*args: Any, **kwargs: Any) -> Any:
            note("collective", name=name, caller=caller_outside_torch())
            return original(*args, **kwargs)

        return collective

    for name in ("barrier", "all_reduce", "broadcast", "broadcast_object_list", "reduce", "all_gather"):
        setattr(torch_distributed, name, watched(name, getattr(torch_distributed, name)))


def watch_callback(module: ModuleType) -> None:
    """Trace every rank's steps and saves, outside whatever the callback wraps."""
    import torch.distributed

    watch_collectives(torch.distributed)
    if "end_of_run" in FAULTS:
        module.END_OF_RUN_SECONDS = FAULTS["end_of_run"]  # type: ignore[attr-defined]
    attach = module.SGLangExportCallback.attach

    def attach_and_trace(self: Any, trainer: Any, **kwargs: Any) -> Any:
        note("attach", pid=os.getpid())
        result = attach(self, trainer, **kwargs)
        save, optimizer = trainer.maybe_save_checkpoint, trainer.optimizers[0]

        def traced_save(epoch: Any, *args: Any, **kw: Any) -> Any:
            note("save begins", epoch=epoch)
            value = save(epoch, *args, **kw)
            note("save ends", epoch=epoch)
            return value

        def traced_step(*_: Any) -> None:
            note("step", step=trainer.global_step)
            time.sleep(FAULTS.get("pace", 0))

        train = trainer.run_training

        def traced_training() -> None:
            train()
            note("left training")

        trainer.run_training = traced_training
        trainer.maybe_save_checkpoint = traced_save
        optimizer.register_step_post_hook(traced_step)
        return result

    module.SGLangExportCallback.attach = attach_and_trace  # type: ignore[attr-defined]


def watch_rehearsal(module: ModuleType) -> None:
    if "group_timeout" in FAULTS:
        module.GROUP_TIMEOUT = timedelta(seconds=FAULTS["group_timeout"])  # type: ignore[attr-defined]


class AfterImport:
    """Calls a function on a module right after its import."""

    def __init__(self, hooks: dict[str, Callable[[ModuleType], None]]) -> None:
        self.hooks = hooks

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        hook = self.hooks.pop(name, None)
        if hook is None:
            return None
        spec = importlib.util.find_spec(name)
        assert spec is not None and isinstance(spec.loader, importlib.machinery.SourceFileLoader)
        execute = spec.loader.exec_module

        def execute_and_hook(module: ModuleType) -> None:
            execute(module)
            hook(module)

        spec.loader.exec_module = execute_and_hook  # type: ignore[method-assign]
        return spec


def install() -> None:
    """Have what the environment asks for in this process; modules that are imported already are changed at once."""
    FAULTS.update(json.loads(os.environ.get("TRAINING_FAULTS", "{}")))
    hooks = {
        "eagle3_export.callback": watch_callback,
        "eagle3_export.training.cpu_rehearsal": watch_rehearsal,
    }
    for name in list(hooks):
        if name in sys.modules:
            hooks.pop(name)(sys.modules[name])
    sys.meta_path.insert(0, AfterImport(hooks))
    if "kind" in FAULTS:
        spoil_filesystem()
    if "output" in FAULTS:
        watch_training_threads()
