"""Compile the hot modules with mypyc, beside their sources.

    python tools/compile.py [--remove]

pyproject.toml lists them, [tool.pointsman] compiled. Python prefers a compiled module to its
source, also to a newer one: compile again after a change, or remove what was compiled. Compiled
or interpreted, it is the same program. Needs a C compiler and Python's headers.
"""

import os
import shutil
import sys
import sysconfig
import tomllib
from pathlib import Path

from mypyc.build import mypycify
from setuptools import setup

ROOT = Path(__file__).resolve().parent.parent
CONFIG = ROOT / "pyproject.toml"
SOURCES = ROOT / "src"
BUILD = ROOT / "build"
LIBRARY = "pointsman"  # all code is in pointsman__mypyc, so that calls between modules are direct
SUFFIX = sysconfig.get_config_var("EXT_SUFFIX")


def main() -> None:
    remove()
    if "--remove" not in sys.argv[1:]:
        require_compiler()
        compile_all(tomllib.loads(CONFIG.read_text())["tool"]["pointsman"]["compiled"])


def remove() -> None:
    """Let the sources speak again."""
    for file in [*(SOURCES / "pointsman").rglob(f"*{SUFFIX}"), *SOURCES.glob(f"*{SUFFIX}")]:
        file.unlink()


def require_compiler() -> None:
    compiler = (os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc").split()[0]
    header = Path(sysconfig.get_path("include")) / "Python.h"
    if shutil.which(compiler) is None:
        sys.exit(f"There is no {compiler}.")
    if not header.is_file():
        sys.exit(f"There is no {header}. On Debian: apt-get install python3-dev")


def compile_all(modules: list[str]) -> None:
    os.chdir(SOURCES)  # where modules have their names, and setuptools sees no pyproject.toml
    options = ["--config-file", str(CONFIG), "--cache-dir", str(BUILD / "mypy")]
    paths = [module.replace(".", "/") + ".py" for module in modules]
    extensions = mypycify(
        [*options, *paths],
        opt_level="2",  # as fast as 3, and compiled in two thirds of the time
        debug_level="0",
        group_name=LIBRARY,
        target_dir=str(BUILD),
    )
    for extension in extensions:  # else compilers for ARM fuse a*b+c, and decisions differ
        extension.extra_compile_args.append("-ffp-contract=off")
    places = ["--build-temp", str(BUILD), "--build-lib", str(BUILD)]
    setup(
        name=LIBRARY,
        ext_modules=extensions,
        script_args=["--quiet", "build_ext", "--force", "--inplace", *places],
    )


if __name__ == "__main__":
    main()
