"""Settings of the method, with their defaults, and how they are read from TOML and written back."""
