"""One TOML file per kind of problem: its base settings and what each preset changes."""
