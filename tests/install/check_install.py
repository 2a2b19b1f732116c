"""`cmake --install`, and a project that has nothing but the result: found, compiled, linked, run.

Usage: check_install.py BUILD REPOSITORY CMAKE. The installed tree is moved before it is used; the library exports the public
interface and nothing else; a version that is not there is refused.
"""
import pathlib
import re
import subprocess
import sys
import tempfile

BUILD, ROOT, CMAKE = sys.argv[1], pathlib.Path(sys.argv[2]), sys.argv[3]


def run(*command, ok=True, **options):
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, timeout=240, **options)
    assert (done.returncode == 0) is ok, (command, done.returncode, done.stdout[-3000:], done.stderr[-3000:])
    return done.stdout + done.stderr


def main():
    with tempfile.TemporaryDirectory(prefix="refit-install-") as scratch:
        home = pathlib.Path(scratch)
        for component in ("cpp", "cli"):
            run(CMAKE, "--install", BUILD, "--prefix", home / "first", "--component", component)
        prefix = (home / "first").rename(home / "elsewhere")

        library = next(prefix.glob("lib*/**/librefit.so"))
        symbols = [line.split(maxsplit=2)[2] for line in run("nm", "-DC", "--defined-only", library).splitlines()]
        foreign = [s for s in symbols if not re.match(r"((typeinfo( name)?|vtable) for )?refit::api::", s)]
        assert len(symbols) > 50 and not foreign, foreign[:20]

        project = ROOT / "examples/cpp"
        run(CMAKE, "-S", project, "-B", home / "build", "-G", "Ninja", f"-DCMAKE_PREFIX_PATH={prefix}", "-DCMAKE_CXX_FLAGS=-Wall -Wextra -Werror")
        assert str(prefix) in (home / "build/CMakeCache.txt").read_text()
        run(CMAKE, "--build", home / "build")
        said = run(home / "build/whole_job", cwd=home)
        assert "coverage 1.0" in said and said.count("committed") == 3 and "both engine ranks hold step 3" in said, said

        (home / "newer").mkdir()
        (home / "newer/CMakeLists.txt").write_text("cmake_minimum_required(VERSION 3.25)\nproject(newer NONE)\nfind_package(Refit 99.0 REQUIRED)\n")
        refused = run(CMAKE, "-S", home / "newer", "-B", home / "newer/build", f"-DCMAKE_PREFIX_PATH={prefix}", ok=False)
        assert "99.0" in refused, refused

        version = run(prefix / "bin/refit", "--version")
        assert re.match(r"refit \d+\.\d+\.\d+\ncommit +\S+", version) and "shm" in re.search(r"^movers +(.*)$", version, re.M)[1], version
        assert re.search(r"^ISA +(\S+) \(this machine has .*\b\1\b", version, re.M), version
    print("the installed library serves a project of its own")


if __name__ == "__main__":
    main()
