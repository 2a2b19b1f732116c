"""docs/errors.md has a section for each code and nothing else, says of each whether a retry helps and which exception it is, and
quotes messages that exist. Usage: check_errors.py REPOSITORY.
"""
import pathlib
import re
import sys

TOPS = ("src", "cli", "python/refit", "include")


def enumerators(header):
    body = re.search(r"enum class Code[^{]*\{(.*?)\};", header.read_text(), re.S)[1]
    return re.findall(r"^\s*(k\w+),", body, re.M)


def sources(root):
    """All text of the library, with neighbouring string literals joined as the compilers do."""
    text = "\n".join(p.read_text() for top in TOPS for p in sorted((root / top).rglob("*")) if p.suffix in (".cpp", ".h", ".py"))
    return re.sub(r'"\s*\n\s*f?"', "", text).replace('\\"', '"')


def problems(root):
    inner, outer = (enumerators(root / f) for f in ("src/core/result.h", "include/refit/error.h"))
    if inner != outer or len(inner) < 5:
        yield f"the codes of src/core/result.h and include/refit/error.h differ: {inner}, {outer}"
    result = (root / "src/core/result.cpp").read_text()
    names = dict(re.findall(r'case Code::(k\w+):\s*return "(\w+)";', result))
    retried = set(re.findall(r"code == Code::(k\w+)", re.search(r"bool retryable.*?\}", result, re.S)[0]))
    classes = dict((code, (name, base)) for name, base, code in re.findall(r'class (\w+)\(Error, (\w+)\):\s*""".*?"""\s*code = "(\w+)"', (root / "python/refit/_errors.py").read_text(), re.S))

    page = (root / "docs/errors.md").read_text()
    sections = {title: body for title, body in re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", page, re.S | re.M)}
    wanted = [names[code] for code in inner if code in names]
    if len(wanted) != len(inner):
        yield f"src/core/result.cpp names {sorted(names)} of {inner}"
    for title in sections.keys() ^ set(wanted):
        yield f"docs/errors.md: '{title}' " + ("is no code" if title in sections else "has no section")
    text = sources(root)
    for code in inner:
        name = names.get(code)
        body = sections.get(name)
        if body is None:
            continue
        said = re.search(r"^Tried again as it is: (yes|no)", body, re.M)
        if not said or (said[1] == "yes") != (code in retried):
            yield f"docs/errors.md: {name}: 'Tried again as it is' must be {'yes' if code in retried else 'no'}"
        exception, base = classes.get(name, ("", ""))
        if not exception or f"`refit.{exception}`" not in body:
            yield f"docs/errors.md: {name}: its Python class {exception or '(missing in _errors.py)'} is not named"
        elif base != "RuntimeError" and f"`{base}`" not in body:
            yield f"docs/errors.md: {name}: it is also a {base}"
        quoted = re.findall(r"^\| `([^`]+)` \|", body, re.M)
        if code != "kInternal" and len(quoted) < 2:
            yield f"docs/errors.md: {name}: quotes fewer than two messages"
        for message in quoted:
            if message not in text:
                yield f"docs/errors.md: {name}: no source says '{message}'"


def main():
    found = list(problems(pathlib.Path(sys.argv[1]).resolve()))
    print("\n".join(found) if found else "the error reference holds")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
