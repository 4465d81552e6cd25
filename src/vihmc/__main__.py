"""``python -m vihmc``."""

from vihmc.cli import main

main()
