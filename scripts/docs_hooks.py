"""Hooks of mkdocs.yml. The pages are written for the repository, where GitHub and editors read them; this makes a site of them.

- Files outside of docs/ that belong to the documentation, and every other file that a page links to, lie under repo/ of the
  site, and links are turned to match.
- Python-Markdown wants a blank line before a list or a table where other readers do not.
"""
import pathlib
import posixpath
import re

from mkdocs.structure.files import File

ROOT = pathlib.Path(__file__).resolve().parent.parent
OUTSIDE = ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "schema/*.md", "src/*/README.md", "src/*/*/README.md"]
LINK = re.compile(r"(\]\()([^)\s#]+)(#[^)\s]*)?(\))")
FENCE = re.compile(r"^\s*(```|~~~)")
ITEM = re.compile(r"^\s*([-*+]|\d+[.)])\s")


def repo_path(src_uri):
    return src_uri.removeprefix("repo/") if src_uri.startswith("repo/") else f"docs/{src_uri}"


def site_path(path):
    return path.removeprefix("docs/") if path.startswith("docs/") else f"repo/{path}"


def outside_code(text, change):
    """Each line that is not inside a fence, changed."""
    lines, fence = [], False
    for line in text.split("\n"):
        if FENCE.match(line):
            fence = not fence
        lines.append(line if fence or FENCE.match(line) else change(line))
    return "\n".join(lines)


def linked(path, text):
    """Repository paths that the links of the file at `path` name."""
    found = []
    outside_code(text, lambda line: found.extend(m[2] for m in LINK.finditer(line)) or line)
    return [posixpath.normpath(posixpath.join(posixpath.dirname(path), target)) for target in found if "://" not in target and not target.startswith(("mailto:", "/"))]


def on_files(files, config):
    waiting = sorted({p.relative_to(ROOT).as_posix() for pattern in OUTSIDE for p in ROOT.glob(pattern)})
    for page in files.documentation_pages():
        waiting += linked(repo_path(page.src_uri), page.content_string)
    while waiting:
        path = waiting.pop()
        if path.startswith(("docs/", "../")) or not (ROOT / path).is_file() or files.get_file_from_path(site_path(path)):
            continue  # what does not exist is found, and told, when the page's links are looked at
        files.append(File.generated(config, site_path(path), abs_src_path=str(ROOT / path)))
        if path.endswith(".md"):
            waiting += linked(path, (ROOT / path).read_text())
    return files


def spaced(text):
    """A blank line before each list and table that follows a paragraph."""
    lines, fence, within = [], False, ""
    for line in text.split("\n"):
        starts = ""
        if FENCE.match(line):
            fence = not fence
        elif not fence:
            starts = "list" if ITEM.match(line) else "table" if line.startswith("|") else ""
            if starts and starts != within and lines and lines[-1].strip() and not lines[-1].startswith(("#", "<!--")):
                lines.append("")
            if starts:
                within = starts
            elif not line.strip() or not line.startswith(" "):
                within = ""
        lines.append(line)
    return "\n".join(lines)


def on_page_markdown(markdown, page, config, files):
    here = page.file.src_uri

    def turn(match):
        target = match[2]
        if "://" in target or target.startswith(("mailto:", "/")):
            return match[0]
        path = posixpath.normpath(posixpath.join(posixpath.dirname(repo_path(here)), target))
        return match[1] + posixpath.relpath(site_path(path), posixpath.dirname(here) or ".") + (match[3] or "") + match[4]

    return spaced(outside_code(markdown, lambda line: LINK.sub(turn, line)))
