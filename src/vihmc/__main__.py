"""``python -m vihmc``."""

from vihmc.cli.app import main

main()
