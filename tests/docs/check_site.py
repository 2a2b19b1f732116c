"""The built site loads nothing from elsewhere, and all that it loads or links to inside is there, anchors included.

Usage: check_site.py SITE.
"""
import html.parser
import pathlib
import re
import sys
import urllib.parse

# (tag, attribute) of what a browser fetches by itself.
LOADS = {("script", "src"), ("img", "src"), ("iframe", "src"), ("source", "src"), ("video", "src"), ("audio", "src"), ("object", "data"), ("embed", "src"), ("image", "href"), ("use", "href")}
FETCHED_RELS = {"stylesheet", "icon", "preload", "prefetch", "modulepreload", "manifest", "dns-prefetch", "preconnect"}
# The theme's script fetches from elsewhere only where a page has one of these.
TRIGGERS = ('class="mermaid"', 'data-md-component="source"')


class Page(html.parser.HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.loads, self.links, self.ids = [], [], set()
        self.feed(text)

    def handle_starttag(self, tag, pairs):
        attributes = dict(pairs)
        self.ids |= {attributes[k] for k in ("id", "name") if attributes.get(k)}
        self.loads += [v for k, v in pairs if (tag, k) in LOADS and v]
        if tag == "link" and FETCHED_RELS & set((attributes.get("rel") or "").split()):
            self.loads.append(attributes["href"])
        if tag == "a" and attributes.get("href"):
            self.links.append(attributes["href"])


def outside(url):
    return bool(re.match(r"([a-z]+:)?//", url)) or url.startswith(("http:", "https:"))


def inside(site, page, url):
    """The file and the anchor that a link of `page` names."""
    path, _, anchor = url.partition("#")
    path = urllib.parse.unquote(path.partition("?")[0])
    file = page if not path else site / path.lstrip("/") if path.startswith("/") else page.parent / path
    return file.resolve() / "index.html" if file.is_dir() else file.resolve(), urllib.parse.unquote(anchor)


def problems(site):
    pages = {p.resolve(): Page(p.read_text()) for p in sorted(site.rglob("*.html"))}
    if len(pages) < 20:
        yield f"only {len(pages)} pages"
    for path, page in pages.items():
        where = path.relative_to(site)
        text = path.read_text()
        for trigger in TRIGGERS:
            if trigger in text:
                yield f"{where}: {trigger} makes the theme fetch from elsewhere"
        for url in page.loads:
            if outside(url):
                yield f"{where} loads {url}"
            elif not url.startswith("data:") and not inside(site, path, url)[0].is_file():
                yield f"{where} loads {url}, which is not there"
        if where.name == "404.html":
            continue  # its links are those of a site at the root of a server
        for url in page.links:
            if outside(url) or url.startswith("mailto:"):
                continue
            file, anchor = inside(site, path, url)
            if not file.is_file():
                yield f"{where} links to {url}, which is not there"
            elif anchor and file in pages and anchor not in pages[file].ids and anchor not in ("", "__top"):
                yield f"{where} links to {url}, which has no such anchor"
    for sheet in sorted(site.rglob("*.css")):
        for url in re.findall(r"url\(\s*['\"]?([^'\")]+)", sheet.read_text()) + re.findall(r"@import\s+['\"]([^'\"]+)", sheet.read_text()):
            if outside(url):
                yield f"{sheet.relative_to(site)} loads {url}"
    for picture in sorted(site.rglob("*.svg")):
        for url in re.findall(r"(?:href|src)\s*=\s*['\"]([^'\"#]+)", picture.read_text()):
            yield f"{picture.relative_to(site)} refers to {url}"


def main():
    found = list(problems(pathlib.Path(sys.argv[1]).resolve()))
    print("\n".join(found) if found else "the site stands alone")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
