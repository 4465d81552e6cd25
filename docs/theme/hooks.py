"""What the site needs beside its pages: files of the repository that they link to, tables from the code, and MathML.

A link that leaves ``docs/`` leads to a copy under ``source/``: a page with the text for a Python file, the page itself
for a Markdown file, the file for all else. So the links of a page work on the site and in a checkout.
"""

import html
import json
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import latex2mathml.converter

ROOT = Path(__file__).resolve().parents[2]
LINK = re.compile(r"(\]\()([^)\s#]+)((?:#[^)\s]*)?\))")
FENCE = re.compile(r"(^ *```.*?^ *```\s*?$)", re.MULTILINE | re.DOTALL)
MATHS = re.compile(r'<(span|div) class="arithmatex">(?:\\\((.*?)\\\)|\\\[(.*?)\\\])</\1>', re.DOTALL)
ROLE = re.compile(r":(math|class|func|meth|mod|attr|data):<code>(.*?)</code>", re.DOTALL)
LONGEST = 50
"""Characters of an equation in a line, beyond which it scrolls on a phone."""
TABLE = re.compile(r"<!-- generated: (\w+) -->")


def on_files(files: Any, *, config: Any) -> Any:
    """Add a copy of every file of the repository that a page links to."""
    from mkdocs.structure.files import File

    pages = {f"docs/{file.src_uri}": Path(file.abs_src_path).read_text("utf-8") for file in files.documentation_pages()}
    pages |= {name: (ROOT / name).read_text("utf-8") for name in ("CHANGELOG.md", "CONTRIBUTING.md")}
    for name, text in pages.items():
        if not name.startswith("docs/"):
            files.append(File.generated(config, uri(name), content=text))
        for target in targets(text, posixpath.dirname(name)):
            path = ROOT / target
            if target.startswith("docs/") or not path.is_file() or files.get_file_from_path(uri(target)):
                continue  # a target that is missing stays as it is, and fails the build
            if path.suffix == ".py":
                text = f"---\nsearch:\n  exclude: true\n---\n# {target}\n\n```python\n{path.read_text('utf-8')}```\n"
                files.append(File.generated(config, uri(target), content=text))
            elif target not in pages:
                files.append(File.generated(config, uri(target), abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Put the tables of the code in, and lead links that leave the documentation to the copies."""
    markdown = TABLE.sub(lambda match: TABLES[match.group(1)](), markdown)
    here = page.file.src_uri
    base = posixpath.dirname(here.removeprefix("source/") if here.startswith("source/") else f"docs/{here}")

    def lead(match: re.Match[str]) -> str:
        target = resolve(match.group(2), base)
        if target is None:
            return match.group(0)
        inside = target.removeprefix("docs/") if target.startswith("docs/") else uri(target)
        return f"{match.group(1)}{posixpath.relpath(inside, posixpath.dirname(here) or '.')}{match.group(3)}"

    parts = FENCE.split(markdown)
    return "".join(part if index % 2 else LINK.sub(lead, part) for index, part in enumerate(parts))


def on_page_content(content: str, **_: Any) -> str:
    """Turn equations into MathML and roles of docstrings into code."""
    content = MATHS.sub(
        lambda match: mathml(match.group(2) or match.group(3), is_block=match.group(2) is None), content
    )
    return ROLE.sub(role, content)


def role(match: re.Match[str]) -> str:
    """What a role of a docstring stands for: an equation, or a name."""
    kind, text = match.groups()
    return mathml(text) if kind == "math" else f"<code>{text.lstrip('~').removeprefix('vihmc.')}</code>"


def mathml(source: str, *, is_block: bool = False) -> str:
    """An equation of the page in MathML."""
    source = html.unescape(re.sub(r"<[^>]+>", "", source)).strip()
    plain_text = re.sub(r"\\text\{[^}]*\}", lambda text: text.group(0).replace("\\_", "_"), source)
    found = latex2mathml.converter.convert(plain_text, display="block" if is_block else "inline")
    return f'<span class="wide">{found}</span>' if len(source) > LONGEST and not is_block else found


def targets(text: str, base: str) -> Iterator[str]:
    """The files of the repository that a page links to."""
    for part in FENCE.split(text)[::2]:
        for match in LINK.finditer(part):
            if (target := resolve(match.group(2), base)) is not None:
                yield target


def resolve(link: str, base: str) -> str | None:
    """The path in the repository of a relative link; none for other links."""
    return None if re.match(r"[a-z]+:|/|<", link) else posixpath.normpath(posixpath.join(base, link))


def uri(target: str) -> str:
    """Where the copy of a file is on the site."""
    return f"source/{target}.md" if target.endswith(".py") else f"source/{target}"


def settings_tables() -> str:
    """All settings of a run, section by section, from the classes that validate them."""
    from vihmc.config.method import PredictionConfig, SamplerConfig, SelectionConfig, VIConfig
    from vihmc.data.registry import OWN_DATA, known_kinds
    from vihmc.runs.config import RunConfig, load_preset

    presets = {name: load_preset(name) for name in OWN_DATA if name != "python"}
    sections = {"": RunConfig, "vi": VIConfig, "selection": SelectionConfig, "hmc": SamplerConfig}
    parts = [
        section_table(name, config, presets) for name, config in (sections | {"prediction": PredictionConfig}).items()
    ]
    parts += [
        f"## `[{name}]` {{ #{name} }}\n\n{RunConfig.model_fields[name].default.__doc__}\n\n"
        + table({key: RunConfig.model_json_schema()["$defs"][title]["properties"][key]})
        for name, title, key in (
            ("reference", "ReferenceConfig", "enabled"),
            ("leave_out", "LeaveOutConfig", "num_folds"),
        )
    ]
    kinds: dict[Any, list[str]] = {}
    for name, kind in known_kinds().items():
        kinds.setdefault(kind.settings, []).append(name)
    for config, names in kinds.items():
        title = f"## `[problem]` of {', '.join(f'`{name}`' for name in names)} {{ #problem-{names[0]} }}"
        parts.append(f"{title}\n\n{config.__doc__}\n\n{table(config.model_json_schema()['properties'])}")
    return "\n\n".join(parts)


def section_table(name: str, config: Any, presets: dict[str, Any]) -> str:
    """The settings of one section, with defaults of presets where these differ."""
    changed = {kind: preset.get(name, {}) if name else preset for kind, preset in presets.items()}
    fields = {key: field for key, field in config.model_json_schema()["properties"].items() if "description" in field}
    title = f"## `[{name}]` {{ #{name} }}" if name else "## At the top of the file { #top }"
    return f"{title}\n\n{config.__doc__}\n\n{table(fields, changed)}"


def table(fields: dict[str, Any], changed: dict[str, Any] | None = None) -> str:
    """Settings as rows: default, allowed values, meaning."""
    rows = ["| setting | default | values | meaning |", "|---|---|---|---|"]
    for name, field in fields.items():
        default, others = shown(field.get("default")), {}
        for kind, preset in (changed or {}).items():
            if name in preset and shown(preset[name]) != default:
                others.setdefault(shown(preset[name]), []).append(f"`{kind}`")
        default = "; ".join([default, *(f"{value} for {', '.join(kinds)}" for value, kinds in others.items())])
        rows.append(f"| `{name}` | {default} | {allowed(field)} | {field.get('description', '')} |")
    return "\n".join(rows)


def shown(value: Any) -> str:
    """A value as it is written in TOML; none for what is not given."""
    if value in (None, "none"):
        return "none"
    return f"`{json.dumps(value, ensure_ascii=False, default=str)}`"


def allowed(field: dict[str, Any]) -> str:
    """The values that a setting may have, in words."""
    if "anyOf" in field:
        return " or ".join(dict.fromkeys(allowed(option) for option in field["anyOf"] if option.get("type") != "null"))
    if "enum" in field or "const" in field:
        return ", ".join(f"`{value}`" for value in field.get("enum", [field.get("const")]))
    kind = field.get("type", "")
    if kind == "array":
        items = field.get("items") or next(iter(field.get("prefixItems", [{}])))
        return f"list of {allowed(items)}"
    limits = {"exclusiveMinimum": "> ", "minimum": "≥ ", "exclusiveMaximum": "< ", "maximum": "≤ "}
    bounds = ", ".join(f"{sign}{field[limit]:g}" for limit, sign in limits.items() if limit in field)
    words = {"number": "number", "integer": "whole number", "boolean": "`true`, `false`", "string": "text"}
    return f"{words.get(kind, kind)} {bounds}".strip()


def command_tables() -> str:
    """Every sub-command with its arguments and options, from the command itself."""
    from typer.main import get_command

    from vihmc.cli.app import app

    commands: Any = get_command(app)
    return "\n\n".join(command_table(name, command) for name, command in commands.commands.items())


def command_table(name: str, command: Any) -> str:
    """The help of a sub-command."""
    rows = ["| argument or option | default | meaning |", "|---|---|---|"]
    for parameter in command.params:
        is_option = parameter.param_type_name == "option"
        names = ", ".join([*parameter.opts, *parameter.secondary_opts]) if is_option else parameter.name.upper()
        default = "required" if parameter.required else shown(parameter.default)
        rows.append(f"| `{names}` | {default} | {plain(parameter.help)} |")
    return f"## vihmc {name} {{ #{name} }}\n\n{plain(command.help)}\n\n" + ("\n".join(rows) if command.params else "")


def plain(text: str | None) -> str:
    """Help without the markup of a terminal."""
    return re.sub(r"\[bold\](.*?)\[/bold\]", r"`\1`", text or "", flags=re.DOTALL).replace("|", "\\|")


def api_pages() -> str:
    """The public names in groups, for mkdocstrings to fill in from their docstrings."""
    import vihmc

    missing = set(vihmc.__all__) - {name for names in API.values() for name in names}
    if missing:
        raise KeyError(f"the page of the Python API must have every public name, got none of {sorted(missing)}")
    lines = []
    for title, names in API.items():
        lines.append(f"## {title}\n")
        for name in names:
            path = name if "." in name else f"vihmc.{vihmc._HOMES[name]}.{name}"
            heading = name if "." in name else f"vihmc.{name}"
            lines.append(
                f"::: {path}\n    options:\n      heading: {heading}\n      toc_label: {name.split('.')[-1]}\n"
            )
    return "\n".join(lines)


API = {
    "From data to a result": ("infer", "Posterior", "OperatorPosterior", "Prior", "Shared", "cross_validate", "load"),
    "Results": ("Result", "Prediction", "CrossValidation", "scores"),
    "Likelihoods": (
        *("Gaussian", "GaussianWithScale", "StudentT", "Bernoulli", "Categorical", "Poisson", "Likelihood"),
    ),
    "Models": ("MLP", "DeepONet", "FNO", "PeriodicFeatures"),
    "scikit-learn": ("vihmc.sklearn.VIHMCRegressor", "vihmc.sklearn.VIHMCClassifier"),
    "Bands with a guarantee": (
        "vihmc.diagnostics.conformal.calibrate",
        "vihmc.diagnostics.conformal.cross_calibrate",
    ),
    "Settings": ("MethodConfig", "VIConfig", "SelectionConfig", "SamplerConfig", "PredictionConfig"),
    "Errors and warnings": ("InputError", "DataWarning", "UntrustedWarning"),
    "Parts": ("ParamLayout", "Subspace", "Observer"),
}
TABLES = {"api": api_pages, "settings": settings_tables, "command": command_tables}
