"""The layers of docs/design.md: what may include or import what, and how long a file may be."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
CSRC = ROOT / "csrc"
PACKAGE = ROOT / "ringcomm"

MAY_INCLUDE = {
    "base": set(),
    "reduce": {"base"},
    "coll": {"base"},
    "io": {"base"},
    "device": {"base"},
    "net": {"base", "io"},
    "engine": {"base", "reduce", "coll", "io", "net", "device"},
    "torch": {"base", "reduce", "coll", "io", "net", "device", "engine"},
    "cuda": set(),
}
MAX_LINES = 500
MAX_TORCH_SOURCES = 3  # each costs half a minute and a gigabyte to compile
TORCH_HEADER = re.compile(r"^(torch|c10|ATen|caffe2|pybind11)/|^Python\.h$")
INCLUDE = re.compile(r'^\s*#\s*include\s*(["<])([^">]+)[">]', re.MULTILINE)

# A module of ringcomm imports modules of a lower level; of its own level only at level 1, which is
# the body of the package. What is not named here is level 1.
LEVELS = {
    "_C": 0,
    "_build_info": 0,
    "hooks": 2,
    "outer": 2,
    "meters": 2,
    "pipeline": 2,
    "testing": 2,
    "cli": 3,
    "__main__": 4,
}


def cpp_files(*folders: Path) -> list[Path]:
    suffixes = {".h", ".cpp", ".inl", ".cu"}
    return sorted(p for folder in folders for p in folder.rglob("*") if p.suffix in suffixes)


def includes(path: Path) -> Iterator[tuple[bool, str]]:
    for quote, name in INCLUDE.findall(path.read_text()):
        yield quote == '"', name


def test_csrc_folders_are_the_known_ones() -> None:
    folders = {path.relative_to(CSRC).parts[0] for path in cpp_files(CSRC)}
    assert folders <= MAY_INCLUDE.keys()


def test_csrc_includes_only_downwards() -> None:
    wrong = []
    for path in cpp_files(CSRC):
        folder = path.relative_to(CSRC).parts[0]
        for quoted, name in includes(path):
            if not quoted:
                continue
            target = name.split("/")[0]
            allowed = target in MAY_INCLUDE[folder] | {folder}
            if not allowed or not (CSRC / name).is_file():
                wrong.append(f"{path.relative_to(ROOT)}: {name}")
    assert wrong == []


def test_only_csrc_torch_sees_torch() -> None:
    folders = [CSRC, ROOT / "tests" / "cpp", ROOT / "bench" / "cpp"]
    wrong = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in cpp_files(*folders)
        if CSRC / "torch" not in path.parents
        for _, name in includes(path)
        if TORCH_HEADER.search(name)
    ]
    assert wrong == []


def test_torch_sources_are_few_and_light() -> None:
    sources = sorted((CSRC / "torch").glob("**/*.cpp"))
    assert len(sources) <= MAX_TORCH_SOURCES
    heavy = {"torch/extension.h", "torch/torch.h", "torch/all.h"}
    found = [path for path in cpp_files(CSRC / "torch") for _, n in includes(path) if n in heavy]
    assert found == []


def test_files_are_short() -> None:
    files = cpp_files(CSRC, ROOT / "tests" / "cpp", ROOT / "bench" / "cpp")
    files += [path for folder in (PACKAGE, ROOT / "tests") for path in folder.rglob("*.py")]
    lengths = {str(p.relative_to(ROOT)): len(p.read_text().splitlines()) for p in files}
    assert {name: n for name, n in lengths.items() if n >= MAX_LINES} == {}


def test_sanitizers_have_no_suppressions() -> None:
    folders = ("csrc", "tests", "bench", "ringcomm", ".ci")
    files = [path for folder in folders for path in (ROOT / folder).rglob("*") if path.is_file()]
    named = [p for p in files if re.search(r"suppress|\.supp$", p.name)]
    assert named == []
    settings = [ROOT / "Makefile", ROOT / ".ci/run", ROOT / "tests/cpp/CMakePresets.json"]
    settings.append(ROOT / "tests/cpp/CMakeLists.txt")
    assert [path for path in settings if "suppressions=" in path.read_text()] == []
    silenced = re.compile(r"no_sanitize|__(tsan|lsan|asan)_default_(options|suppressions)")
    core = cpp_files(CSRC, ROOT / "tests" / "cpp")
    assert [path for path in core if silenced.search(path.read_text())] == []


def ringcomm_imports(path: Path) -> Iterator[str]:
    """The part after ``ringcomm.`` of each import, "" for the package itself."""
    module = list(path.relative_to(PACKAGE).with_suffix("").parts)
    for node in ast.walk(ast.parse(path.read_text())):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = ["ringcomm", *module][: -node.level]
                base = ".".join([*parts, base] if base else parts)
            if base == "ringcomm":
                names = [f"{base}.{alias.name}" for alias in node.names]
            else:
                names = [base]
        for name in names:
            root, _, rest = name.partition(".")
            if root == "ringcomm":
                yield rest


@pytest.mark.parametrize(
    "path", sorted(PACKAGE.rglob("*.py")), ids=lambda p: str(p.relative_to(PACKAGE))
)
def test_ringcomm_imports_only_downwards(path: Path) -> None:
    own = path.relative_to(PACKAGE).with_suffix("").parts[0]
    level = LEVELS.get(own, 1)
    wrong = []
    for name in ringcomm_imports(path):
        target = name.split(".")[0]
        same = target == own or (level == 1 and LEVELS.get(target, 1) == 1)
        if not same and LEVELS.get(target, 1) >= level:
            wrong.append(name)
    assert wrong == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("import ringcomm.hooks.stale", ["hooks.stale"]),
        ("from ringcomm import _C, meters", ["_C", "meters"]),
        ("from .hooks import stale", ["hooks"]),
        ("from . import options", ["options"]),
        ("def f():\n    from ringcomm.cli import bench", ["cli"]),
        ("import torch", []),
    ],
)
def test_imports_are_read_in_every_spelling(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, expected: list[str]
) -> None:
    monkeypatch.setitem(globals(), "PACKAGE", tmp_path)
    source = tmp_path / "backend.py"
    source.write_text(text)
    assert list(ringcomm_imports(source)) == expected
