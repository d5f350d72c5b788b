"""`python -m eagle3_export` is the command `eagle3-export`."""

from eagle3_export.cli import main

main()
