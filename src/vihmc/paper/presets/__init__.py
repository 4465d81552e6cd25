"""One TOML file per experiment of the paper: its base settings and what each preset changes."""
