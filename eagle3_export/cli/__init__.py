"""The command line: arguments and printing, nothing else."""

from eagle3_export.cli.commands import app, main

__all__ = ["app", "main"]
