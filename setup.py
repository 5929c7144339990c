"""Builds ringcomm._C with ninja; everything declarative is in pyproject.toml."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT))
from build_backend import TORCH_RANGE, Torch, find_torch, require_torch  # noqa: E402

CORE = ("base", "reduce", "coll", "io", "net", "device", "engine")
EXPORTS = ROOT / "csrc" / "torch" / "exports.map"

# Warnings of torch's and Python's headers are theirs: -isystem. c10's debug checks in headers
# follow NDEBUG, which torch's own release builds define.
COMPILE_FLAGS = (
    "-std=c++20 -O2 -DNDEBUG -fPIC -fvisibility=hidden -pthread"
    " -D_GLIBCXX_USE_CXX11_ABI=1 -Wall -Wextra"
)
LINK_FLAGS = "-shared -pthread -Wl,--as-needed -Wl,-O1 -Wl,--build-id"

NINJA_RULES = """\
rule cxx
  command = $cxx $flags -MMD -MF $out.d -c $in -o $out
  depfile = $out.d
  deps = gcc
  description = compile $in
rule link
  command = $cxx -o $out $in $libs
  description = link $out

"""


def find_ninja() -> str:
    """The ninja wheel of this interpreter first: an unactivated venv's bin is not on PATH."""
    try:
        import ninja
    except ImportError:
        found = shutil.which("ninja")
    else:
        found = shutil.which("ninja", path=ninja.BIN_DIR) or shutil.which("ninja")
    if found is None:
        sys.exit("ringcomm is built by ninja: install it first (pip install ninja).")
    return found


def ninja_path(path: Path | str) -> str:
    return str(path).replace("$", "$$").replace(" ", "$ ").replace(":", "$:")


def ninja_file(torch: Torch, sources: list[Path], objects: Path, target: Path) -> str:
    compiler = os.environ.get("CXX") or shutil.which("g++") or "c++"
    if shutil.which("ccache") and "ccache" not in compiler:
        compiler = f"ccache {compiler}"
    include = torch.folder / "include"
    flags = [
        *shlex.split(COMPILE_FLAGS),
        f"-I{ROOT / 'csrc'}",
        # torch's own pybind11 must be the one found: pip's may differ in its ABI.
        *(f"-isystem{path}" for path in (include, include / "torch/csrc/api/include")),
        f"-isystem{sysconfig.get_path('include')}",
        *shlex.split(os.environ.get("CXXFLAGS", "")),
    ]
    libs = [
        *shlex.split(LINK_FLAGS),
        f"-Wl,--version-script={EXPORTS}",
        f"-L{torch.folder / 'lib'}",
        *("-lc10", "-ltorch_cpu", "-ltorch_python", "-ltorch"),
        *shlex.split(os.environ.get("LDFLAGS", "")),
    ]
    lines = [
        f"builddir = {objects}".replace("$", "$$"),
        f"cxx = {compiler}".replace("$", "$$"),
        f"flags = {shlex.join(flags)}".replace("$", "$$"),
        f"libs = {shlex.join(libs)}".replace("$", "$$"),
        NINJA_RULES,
    ]
    outputs = []
    for source in sources:
        output = ninja_path(objects / source.relative_to(ROOT / "csrc").with_suffix(".o"))
        outputs.append(output)
        lines.append(f"build {output}: cxx {ninja_path(source)}")
    lines.append(f"build {ninja_path(target)}: link {' '.join(outputs)} | {ninja_path(EXPORTS)}")
    lines.append(f"default {ninja_path(target)}")
    return "\n".join(lines) + "\n"


class BuildExt(build_ext):
    """Compiles in build/ext-<torch>-<python>, which is kept: a second build is incremental."""

    def build_extension(self, ext: Extension) -> None:
        if not sys.platform.startswith("linux"):
            sys.exit("ringcomm runs on Linux only (epoll, futexes).")
        torch = require_torch()
        objects = ROOT / "build" / f"ext-{torch.version}-{sys.implementation.cache_tag}"
        objects.mkdir(parents=True, exist_ok=True)
        built = objects / "_C.so"
        sources = [ROOT / source for source in ext.sources]
        script = objects / "build.ninja"
        script.write_text(ninja_file(torch, sources, objects, built))
        jobs = os.environ.get("MAX_JOBS")
        command = [find_ninja(), "-f", str(script), *(["-j", jobs] if jobs else [])]
        subprocess.run(command, cwd=ROOT, check=True)
        target = Path(self.get_ext_fullpath(ext.name))
        target.parent.mkdir(parents=True, exist_ok=True)
        target.unlink(missing_ok=True)
        shutil.copy2(built, target)

    def run(self) -> None:
        super().run()
        torch = require_torch()
        package = ROOT / "ringcomm" if self.inplace else Path(self.build_lib, "ringcomm")
        package.mkdir(parents=True, exist_ok=True)
        (package / "_build_info.py").write_text(
            '"""Written by setup.py: the torch that ringcomm._C was compiled against."""\n\n'
            f'TORCH_VERSION = "{torch.version}"\nTORCH_MINOR = {torch.minor}\n'
        )


class BuildPy(build_py):
    """Starts from an empty folder, so that a module that was removed is not packed again."""

    def run(self) -> None:
        if not self.editable_mode:
            shutil.rmtree(Path(self.build_lib, "ringcomm"), ignore_errors=True)
        super().run()


def extension_sources() -> list[str]:
    found = [path for folder in CORE for path in ROOT.glob(f"csrc/{folder}/**/*.cpp")]
    found += ROOT.glob("csrc/torch/*.cpp")
    return [str(path.relative_to(ROOT)) for path in sorted(found)]


def torch_pin() -> str:
    """A build works with one torch minor, and says so to pip."""
    torch = find_torch()
    return TORCH_RANGE if torch is None else f"torch=={torch.minor[0]}.{torch.minor[1]}.*"


setup(
    ext_modules=[Extension("ringcomm._C", extension_sources(), language="c++")],
    cmdclass={"build_ext": BuildExt, "build_py": BuildPy},
    # torch installs without numpy, but its object collectives need it.
    install_requires=[torch_pin(), "rich>=13", "numpy"],
)
