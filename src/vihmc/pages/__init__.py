"""Pages for people who never open Python: the report of a run, and runs side by side."""
