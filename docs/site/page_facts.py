"""What search engines and language models read of each page: its title, and what it answers.

The site's own search reads both, too. There, answers to messages come first; pages in Chinese,
which quote the same messages, and pages for developers come last. `asked.yml` has what people type
before they know the answer: its words count like those of a section's text.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import yaml

_LONGEST = 155  # letters of a description that search engines show
_FACTS = yaml.safe_load(Path(__file__).with_suffix(".yml").read_text("utf-8"))
_ASKED = yaml.safe_load(Path(__file__).with_name("asked.yml").read_text("utf-8"))
_BOOST = {  # by the beginning of a page's path
    **dict.fromkeys(("faq", "frameworks", "half_precision", "questions", "recipes"), 1.4),
    **dict.fromkeys(("guard", "loss_scaling"), 1.2),
    **dict.fromkeys(("agents", "command_line", "how_right", "limits", "reference"), 0.8),
    **dict.fromkeys(("many_ranks", "releases", "steering", "troubleshooting"), 0.8),
    **dict.fromkeys(("dashboard", "fleet", "prove", "reading", "restart", "sharing"), 0.7),
    **dict.fromkeys(("index", "design", "columns", "dependencies"), 0.6),
    "findings/README": 0.4,
    "findings/": 0.7,
    "zh/": 0.4,
}
_OF_SECTIONS = {  # found by their headings, of which each is a question or a task
    f"{name}.md"
    for name in ("faq", "half_precision_weights", "loss_scaling", "questions", "recipes")
}
_MEANING = re.compile(r"^## What it means\n\n(.+)$", re.MULTILINE)
_IN_WORDS = dict(
    re.findall(
        r"\]\((AMP\S+\.md)\) \| (.+?) \|",
        Path(__file__).parents[1].joinpath("findings", "README.md").read_text("utf-8"),
    )
)
_BETWEEN_HAN = re.compile(r"(?<=[\u3400-\u9fff])(?=[\u3400-\u9fff])")
_SEARCHED: dict[str, tuple[str, str]] = {}  # by a page's address: its title, and what it answers


def _as_read(markdown: str) -> str:
    """A line without its marks; what is escaped is meant: `load\\_state\\_dict`."""
    return re.sub(r"\\(.)|[`*_]", lambda mark: mark[1] or "", markdown)


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """MkDocs calls this with each page: give it its title and description."""
    source = page.file.src_uri
    boost = (value for start, value in _BOOST.items() if source.startswith(start))
    page.meta["search"] = {"boost": next(boost, 1)}
    if facts := _FACTS.get(source):
        title, answers = facts["title"], facts["answers"]
        page.meta["description"] = answers
    elif meaning := _MEANING.search(markdown):  # a finding's page
        answers = _as_read(meaning[1])
        words = _as_read(_IN_WORDS[page.file.name + ".md"])
        title = f"{words}: {markdown.partition(chr(10))[0].lstrip('# ')}"
        page.meta["description"] = answers[:_LONGEST].rpartition(" ")[0]
    else:
        return markdown
    page.meta["title"] = title
    if source not in _OF_SECTIONS:
        _SEARCHED[page.url] = title, answers
    return markdown


def on_post_build(*, config: Any) -> None:
    """Write llms.txt: what each page answers, in the order of the navigation. Tell the search."""
    lines = [f"# {config.site_name}", "", f"> {config.site_description}"]
    for entry in config.nav:
        ((section, pages),) = entry.items()
        pages = [{section: pages}] if isinstance(pages, str) else pages
        lines += ["", f"## {section}", ""]
        for each in pages:
            (source,) = each.values()
            path = source.removesuffix("README.md").removesuffix("index.md").removesuffix(".md")
            url = f"{config.site_url or ''}{path.rstrip('/')}{'/' if path else ''}" or "./"
            lines.append(f"- [{_FACTS[source]['title']}]({url}): {_FACTS[source]['answers']}")
    Path(config.site_dir, "llms.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    path = Path(config.site_dir, "search", "search_index.json")
    index = json.loads(path.read_text("utf-8"))
    if unknown := _ASKED.keys() - {entry["location"] for entry in index["docs"]}:
        raise ValueError(f"asked.yml: the site has no section {sorted(unknown)}")
    for entry in index["docs"]:
        entry["asked"] = _ASKED.get(entry["location"], [])
        if searched := _SEARCHED.get(entry["location"]):
            entry["title"] = searched[0]
            entry["text"] = f"<p>{searched[1]}</p> {entry['text']}"
        for part in ("title", "text"):
            entry[part] = _BETWEEN_HAN.sub("\u200b", entry[part])
    path.write_text(json.dumps(index, ensure_ascii=False), encoding="utf-8")
