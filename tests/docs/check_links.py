"""Every relative link of every page of the repository: the file is there, and the heading that an anchor names.

Usage: check_links.py REPOSITORY. No network: links to elsewhere are not followed.
"""
import pathlib
import re
import sys

SKIP = {"build", ".cache", ".git"}
LINK = re.compile(r"\]\(([^)\s]*)\)")
CODE = re.compile(r"`[^`\n]*`")
FENCE = re.compile(r"^\s*(```|~~~)")


def lines_of(path):
    """(number, line) outside of fenced code; an unclosed fence is an error."""
    fence, opened = False, 0
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if FENCE.match(line):
            fence, opened = not fence, number
        elif not fence:
            yield number, line
    if fence:
        raise SystemExit(f"{path}:{opened}: this fence is never closed")


def slug(heading):
    """As GitHub and the site make it: lower case, no punctuation, blanks to dashes."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
    text = re.sub(r"[^\w\- ]", "", text.replace("`", "").replace("*", "").strip().lower())
    return text.replace(" ", "-")


def anchors(path, known={}):
    if path not in known:
        counts, known[path] = {}, set()
        for _, line in lines_of(path):
            if heading := re.match(r"#{1,6}\s+(.*)", line):
                name = slug(heading[1])
                counts[name] = counts.get(name, -1) + 1
                known[path].add(name if not counts[name] else f"{name}_{counts[name]}")
    return known[path]


def problems(root):
    pages = [p for p in sorted(root.rglob("*.md")) if not SKIP & set(p.relative_to(root).parts)]
    if len(pages) < 20:
        yield f"only {len(pages)} pages below {root}"
    for page in pages:
        for number, line in lines_of(page):
            for target in LINK.findall(CODE.sub("", line)):
                where = f"{page.relative_to(root)}:{number}: ({target})"
                if re.match(r"[a-z]+:", target):
                    continue
                file, _, anchor = target.partition("#")
                found = (page.parent / file).resolve() if file else page
                if not found.is_file():
                    yield f"{where} is no file"
                elif not found.is_relative_to(root):
                    yield f"{where} leaves the repository"
                elif anchor and anchor not in anchors(found):
                    yield f"{where} names no heading of {found.relative_to(root)}"


def main():
    found = list(problems(pathlib.Path(sys.argv[1]).resolve()))
    print("\n".join(found) if found else "links hold")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
