"""Lays out plugin distributions as pip would, in a folder of their own: for tests of plugins that are not installed."""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from slime import plugins


class Site:
    """A folder on `sys.path`; what is added is found through its entry point, like anything installed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def add(
        self,
        distribution: str,
        source: str,
        *,
        version: str = "1.0",
        requires: str = "slime-rl>=0.1,<0.2",
        entry: str | None = None,
        conf: Mapping[str, str] | None = None,
    ) -> None:
        """A distribution with one package of its name (dashes as underscores).

        Args:
            source: text of the package's `__init__.py`, behind the imports that every plugin needs.
            entry: name of its entry point; the distribution's unless given.
            conf: config files, `{"reward/x.yaml": text}`, put into the package's `conf`.
        """
        package = distribution.replace("-", "_")
        _write(self.folder / package / "__init__.py", f"from slime.hookspecs import hookimpl\n{source}")
        for file, text in {"__init__.py": "", **conf}.items() if conf else ():
            _write(self.folder / package / "conf" / file, text)
        info = self.folder / f"{package}-{version}.dist-info"
        metadata = f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\nRequires-Dist: {requires}\n"
        _write(info / "METADATA", metadata)
        _write(info / "entry_points.txt", f"[slime]\n{entry or distribution} = {package}\n")
        plugins.load.cache_clear()

    def add_project(self, files: Mapping[str, str]) -> None:
        """A distribution from the files of its source: a pyproject.toml, and a package that it names by entry point."""
        for file, text in files.items():
            _write(self.folder / file, text)
        project = tomllib.loads(files["pyproject.toml"])["project"]
        head = f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
        requires = "".join(f"Requires-Dist: {requirement}\n" for requirement in project["dependencies"])
        groups = project["entry-points"].items()
        entries = [f"[{group}]\n{name} = {value}\n" for group, named in groups for name, value in named.items()]
        info = self.folder / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
        _write(info / "METADATA", head + requires)
        _write(info / "entry_points.txt", "".join(entries))
        plugins.load.cache_clear()


def _write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """An empty site; afterwards its modules and what slime remembers of them are forgotten."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    before = set(sys.modules)
    yield Site(folder)
    for name in set(sys.modules) - before:
        if str(folder) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]
    plugins.load.cache_clear()
