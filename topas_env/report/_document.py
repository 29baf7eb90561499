"""A document of headings, text, tables and figures, written as one HTML page and as Markdown with figures beside it."""

import re
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from topas_env._errors import InputError

__all__ = ["Block", "Document", "Figure", "Heading", "Table", "Text", "write_document", "write_markdown"]

_STYLE = """
body { margin: 0 auto; max-width: 1080px; padding: 1rem clamp(.8rem, 3vw, 2rem) 4rem;
       font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; color: #1b1b1b; background: #fff; }
h1 { font-size: 1.5rem; line-height: 1.25; } h2 { font-size: 1.25rem; margin-top: 2.4rem; border-top: 1px solid #dcdcdc;
padding-top: .8rem; } p, li, figcaption { max-width: 78ch; }
.scroll { overflow-x: auto; } table { border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .7rem; border-bottom: 1px solid #dcdcdc; text-align: right; vertical-align: top; }
th:first-child, td:first-child, .words td { text-align: left; } thead th { border-bottom: 2px solid #9a9a9a; }
figure { margin: .8rem 0; } figure svg { width: 100%; height: auto; display: block; }
figcaption, .note { color: #5a5a5a; font-size: .9rem; } code { font-size: .92em; }
"""


class Heading(NamedTuple):
    """A heading of the second level."""

    text: str


class Text(NamedTuple):
    """A paragraph; a word between backquotes is code, between two stars each side it is bold."""

    text: str


class Table(NamedTuple):
    """A table.

    Attributes:
        header: Names of the columns.
        rows: Cells as text.
        note: What the columns mean.
        words: Whether the cells are words and not numbers.
    """

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""
    words: bool = False


class Figure(NamedTuple):
    """A picture.

    Attributes:
        name: Of its file, without ending.
        svg: The picture.
        caption: What it shows.
    """

    name: str
    svg: str
    caption: str


Block = Heading | Text | Table | Figure


class Document(NamedTuple):
    """What was found.

    Attributes:
        title: Heading of the page.
        blocks: Its parts.
        facts: The numbers behind it, one JSON object each.
    """

    title: str
    blocks: list[Block]
    facts: list[dict[str, Any]]


def write_document(document: Document, folder: Path, name: str = "reproduction") -> list[Path]:
    """Writes NAME.html, NAME.md, img/NAME-*.svg and NAME.jsonl into a folder; returns the first two and the last.

    Raises:
        InputError: A file cannot be written.
    """
    page, plain, lines = (folder / f"{name}.{ending}" for ending in ("html", "md", "jsonl"))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        page.write_text(_html(document), encoding="utf-8")
        lines.write_bytes(b"".join(msgspec.json.encode(fact) + b"\n" for fact in document.facts))
    except OSError as error:
        raise InputError(f"{folder}: {error.strerror or error}") from None
    write_markdown(document, plain)
    return [page, plain, lines]


def write_markdown(document: Document, path: Path) -> None:
    """Writes a document as Markdown, and its figures as img/NAME-*.svg beside it.

    Raises:
        InputError: A file cannot be written.
    """
    folder, name = path.parent, path.stem
    try:
        (folder / "img").mkdir(parents=True, exist_ok=True)
        path.write_text(_markdown(document, name), encoding="utf-8")
        for block in document.blocks:
            if isinstance(block, Figure):
                text = block.svg.replace("<svg ", '<svg style="background:#fff" ', 1)
                if "xmlns=" not in text.partition(">")[0]:
                    text = text.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1)
                (folder / "img" / f"{name}-{block.name}.svg").write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from None


def _html(document: Document) -> str:
    parts = [f"<h1>{_inline(document.title)}</h1>"]
    for block in document.blocks:
        if isinstance(block, Heading):
            parts.append(f"<h2>{_inline(block.text)}</h2>")
        elif isinstance(block, Text):
            parts.append(f"<p>{_inline(block.text)}</p>")
        elif isinstance(block, Figure):
            parts.append(f"<figure>{block.svg}<figcaption>{_inline(block.caption)}</figcaption></figure>")
        else:
            head = "".join(f'<th scope="col">{_inline(cell)}</th>' for cell in block.header)
            rows = "".join(
                "<tr>" + "".join(f"<td>{_inline(cell)}</td>" for cell in row) + "</tr>" for row in block.rows
            )
            kind = ' class="words"' if block.words else ""
            parts.append(
                f'<div class="scroll"><table{kind}><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'
            )
            if block.note:
                parts.append(f'<p class="note">{_inline(block.note)}</p>')
    body = "\n".join(parts)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(document.title)}</title><style>{_STYLE}</style></head><body>\n{body}\n</body></html>\n"
    )


def _inline(text: str) -> str:
    coded = re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text, quote=False))
    return re.sub(r"\*\*([^*]+)\*\*", r"<strong>\1</strong>", coded)


def _markdown(document: Document, name: str) -> str:
    parts = [f"# {document.title}"]
    for block in document.blocks:
        if isinstance(block, Heading):
            parts.append(f"## {block.text}")
        elif isinstance(block, Text):
            parts.append(block.text)
        elif isinstance(block, Figure):
            parts.append(f"![{block.caption.partition('. ')[0]}](img/{name}-{block.name}.svg)\n\n*{block.caption}*")
        else:
            rule = ["---" if block.words or not k else "---:" for k in range(len(block.header))]
            lines = [block.header, rule, *block.rows]
            parts.append("\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in lines))
            if block.note:
                parts.append(block.note)
    return "\n\n".join(parts) + "\n"
