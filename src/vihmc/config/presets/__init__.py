"""One TOML file per problem: its base settings and what each preset changes."""

from importlib import resources

PRESETS = ("paper", "default", "quick")


def known_problems() -> tuple[str, ...]:
    """Names of the problems that ship with the package."""
    files = resources.files(__name__).iterdir()
    return tuple(sorted(file.name.removesuffix(".toml") for file in files if file.name.endswith(".toml")))


def preset_text(problem: str) -> str:
    """The file of a problem."""
    return resources.files(__name__).joinpath(f"{problem}.toml").read_text(encoding="utf-8")
