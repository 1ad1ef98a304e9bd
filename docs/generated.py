"""MkDocs hook: generate pages for commands, knobs and JSON schemas, and add pages outside docs/."""

import importlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema
from typer.main import get_command

import hvscale
from hvscale.cli.main import PANELS, app
from hvscale.cli.model_options import ModelCommand
from hvscale.comm_tuning.knobs.table import RESTARTS, KnobRow, knobs

COMMANDS = "reference/commands"
CLASS = re.compile(r"^class (\w+)\((.*)\):", re.MULTILINE)  # a class and its bases
CLONE = Path(__file__).parent.parent
# Pages outside docs/, and their paths in the site.
EXTERNAL_PAGES = {
    "benchmarks/RESULTS.md": "results/benchmarks.md",
    **{f"experiments/{name}/README.md": f"results/{name}.md" for name in ("S1", "S2", "S3", "S4", "S5")},
}


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Add the pages of the commands to the navigation."""
    pages = [{name: f"{COMMANDS}/{name}.md"} for names in PANELS.values() for name in names]
    for section in config.nav or []:
        for entry in section.get("Reference", []):
            if isinstance(entry, dict) and "Commands" in entry:
                entry["Commands"] = [f"{COMMANDS}/index.md", *pages]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages to the site."""
    for path, text in generated_pages():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Rewrite links to pages outside docs/ to their paths in the site."""
    for path, place in EXTERNAL_PAGES.items():
        markdown = markdown.replace(f"](../../{path}", f"](../{place}")
    return markdown


def external_pages() -> Iterator[tuple[str, str]]:
    """The results of benchmarks and studies with rewritten links, and the studies' TOML files."""
    for path, place in EXTERNAL_PAGES.items():
        text = (CLONE / path).read_text().replace("](../../docs/", "](../").replace("](../docs/", "](../")
        study = (CLONE / path).with_name("experiment.toml")
        if study.exists():
            text = text.replace("](experiment.toml)", f"]({Path(place).stem}.toml)")
            yield f"results/{Path(place).stem}.toml", study.read_text()
        yield place, text


def generated_pages() -> Iterator[tuple[str, str]]:
    yield from command_pages()
    yield "reference/knobs.md", knobs_page()
    yield from schema_pages()
    yield from external_pages()


def command_pages() -> Iterator[tuple[str, str]]:
    """A page for each command, and an index of all commands by panel."""
    root: Any = get_command(app)
    context = root.make_context("hvscale", [], resilient_parsing=True)
    index = ["# Commands", "", "Each page shows what `hvscale COMMAND --help` prints.", ""]
    for panel, names in PANELS.items():
        index += [f"## {panel}", "", "| Command | |", "| --- | --- |"]
        for name in names:
            command = root.get_command(context, name)
            index.append(f"| [`{name}`]({name}.md) | {table_cell(first_sentence(command))} |")
            yield f"{COMMANDS}/{name}.md", f"# hvscale {name}\n\n" + "\n".join(command_section(command, name, context))
        index.append("")
    yield f"{COMMANDS}/index.md", "\n".join(index)


def command_section(command: Any, path: str, parent: Any) -> Iterator[str]:
    """The help of a command; for a group, the sections of its sub-commands."""
    context = type(parent)(command, info_name=path, parent=parent)
    yield from (help_text(command), "")
    if getattr(command, "commands", None):
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            yield from (f"## hvscale {path} {name}", "")
            yield from command_section(inner, f"{path} {name}", parent)
        return
    if isinstance(command, ModelCommand):
        command.complete_help()
    usage = " ".join(piece for param in command.get_params(context) for piece in param.get_usage_pieces(context))
    yield from ("```console", f"$ hvscale {path} [OPTIONS] {usage}".rstrip(), "```", "")
    records = [(kind_of(param), param.get_help_record(context)) for param in command.get_params(context)]
    for kind in ("Argument", "Option"):
        rows = [record for record_kind, record in records if record_kind == kind and record and record[0] != "--help"]
        if rows:
            yield from (
                f"| {kind} | |",
                "| --- | --- |",
                *(f"| `{' '.join(left.split())}` | {table_cell(right)} |" for left, right in rows),
                "",
            )


def kind_of(param: Any) -> str:
    return "Argument" if param.param_type_name == "argument" else "Option"


def help_text(command: Any) -> str:
    return re.sub(r"\n{3,}", "\n\n", (command.help or "").replace("\b", "").replace("\f", "")).strip()


def first_sentence(command: Any) -> str:
    return help_text(command).split("\n\n")[0].replace("\n", " ")


def table_cell(text: str) -> str:
    """Escape a text for a cell of a Markdown table."""
    return " ".join(text.split()).replace("|", "\\|")


def knobs_page() -> str:
    """All knobs, with the variables of each library."""
    lines = [
        "# Knobs",
        "",
        "The names and values for `--set KNOB=VALUE`, with each library's own names. `hvscale knobs` prints the same.",
        "",
    ]
    previous = ""
    for row in knobs().rows:
        if row.knob != previous:
            head = "| Library | Variable (default) | Values | Read at | Notes | Source |"
            lines += ["", f"## {row.knob}", "", f"{row.meaning}", "", head, "| --- | --- | --- | --- | --- | --- |"]
            previous = row.knob
        lines.append(knob_line(row))
    return "\n".join(lines) + "\n"


def knob_line(row: KnobRow) -> str:
    variables = ", ".join(
        f"`{name}` ({default})" if default else f"`{name}`" for name, default in row.variables.items()
    )
    notes = "; ".join(filter(None, [f"only over {row.transport}" if row.transport else "", row.note]))
    cells = (row.library, variables, f"{row.values} {row.unit}".strip(), RESTARTS[row.restart], notes, row.source)
    return "| " + " | ".join(table_cell(text.replace("<", "&lt;").replace("*", "\\*")) for text in cells) + " |"


class DocumentSchema(GenerateJsonSchema):
    """JSON schema without the command-line data of `launch.placement_options.option`."""

    def generate_inner(self, schema: Any) -> dict[str, Any]:
        metadata = {key: value for key, value in schema.get("metadata", {}).items() if key != "pydantic_js_extra"}
        return super().generate_inner({**schema, "metadata": metadata})

    def generate(self, schema: Any, mode: Any = "validation") -> dict[str, Any]:
        made = super().generate(schema, mode)
        definitions = made.get("$defs", {})
        if "LaunchOptions" in definitions:  # documents have the options of its placement beside the others
            options = definitions["LaunchOptions"]["properties"]
            del options["placement"]
            options.update(definitions.pop("PlacementOptions")["properties"])
        return made


def schema_pages() -> Iterator[tuple[str, str]]:
    """The JSON schema of each document, and an index of them."""
    lines = [
        "# JSON schemas",
        "",
        "Each document names its schema in the key `schema`. These files are JSON Schemas, generated from the",
        "classes that write and read the documents.",
        "",
        "| Document | Contents | Schema |",
        "| --- | --- | --- |",
    ]
    for name, model in sorted(documents().items()):
        file = name.removeprefix("hvscale/").replace("/", "-") + ".json"
        doc = (model.__doc__ or "").strip().split("\n\n")[0]
        lines.append(f"| `{name}` | {table_cell(doc)} | [{file}](schemas/{file}) |")
        yield (
            f"reference/schemas/{file}",
            json.dumps(model.model_json_schema(schema_generator=DocumentSchema), indent=2) + "\n",
        )
    yield "reference/schemas.md", "\n".join(lines) + "\n"


def documents() -> dict[str, type[BaseModel]]:
    """Return the classes of the documents by the name in their key `schema`.

    Of several classes for one document, the one with the most fields: the others read a part of it.
    """
    found: dict[str, type[BaseModel]] = {}
    for module in modules_of_documents():
        for kind in vars(module).values():
            if isinstance(kind, type) and issubclass(kind, BaseModel) and "schema_" in kind.model_fields:
                name = kind.model_fields["schema_"].default
                if isinstance(name, str) and (
                    name not in found or len(kind.model_fields) > len(found[name].model_fields)
                ):
                    found[name] = kind
    return found


def modules_of_documents() -> Iterator[Any]:
    """The modules that define `VersionedDocument` or a class derived from it."""
    package = Path(hvscale.__file__).parent
    bases = {file: dict(CLASS.findall(file.read_text())) for file in sorted(package.rglob("*.py"))}
    names, known = {"VersionedDocument"}, set[str]()
    while names != known:
        known = names
        derived = (name for classes in bases.values() for name, of in classes.items() if known & {*of.split(", ")})
        names = known.union(derived)
    for file, classes in bases.items():
        if names & classes.keys():
            yield importlib.import_module(".".join(file.relative_to(package.parent).with_suffix("").parts))
