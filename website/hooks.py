"""What MkDocs calls: adds the pages that no file in docs/ holds."""

from __future__ import annotations

import sys
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.plugins import event_priority
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))  # MkDocs loads this file by its path

from website.gallery import gallery  # noqa: E402
from website.reference import pages  # noqa: E402


@event_priority(100)  # before the plugin that takes notebooks
def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the README as the first page, the notebooks, the reference and the gallery."""
    home = (ROOT / "README.md").read_text("utf-8").replace("](docs/", "](")
    for path, text in {"index.md": home, **pages(), **gallery()}.items():
        files.append(File.generated(config, path, content=text))
    for notebook in sorted((ROOT / "examples").glob("*.ipynb")):
        # Not `File.generated`: the plugin that runs notebooks wants their folder.
        path = notebook.relative_to(ROOT).as_posix()
        files.append(File(path, str(ROOT), config.site_dir, config.use_directory_urls))
    return files
