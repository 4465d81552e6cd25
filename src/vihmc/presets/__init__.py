"""One TOML file per problem: its base settings and what each preset changes."""
