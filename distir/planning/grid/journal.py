"""The file to which a search writes its results, so that the search can be resumed."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, Self, TextIO, TypeVar

from distir.errors import DistIRError
from distir.planning.plans.programs import Programs
from distir.planning.plans.result import Result, from_json
from distir.system.output_files import errors_name

_FORMAT = 2

Row = TypeVar("Row")


class JournalFile(ABC, Generic[Row]):
    """
    A file of JSON lines. The first line describes the search (`header`); each further
    line holds one row of results, which is written as soon as it is known. `results`
    holds the rows of earlier runs.

    If the machine stopped in the middle of a line, this last line is dropped; its row
    must be added again. Entering the context raises DistIRError if the file has a
    header that differs from `header`, is not a journal or cannot be used.
    """

    def __init__(self, path: Path, header: Mapping[str, Any]):
        self.path = path
        self.results: list[Row] = []
        self._header = header
        self._file: TextIO | None = None

    @abstractmethod
    def encoded(self, row: Row) -> Mapping[str, Any]:
        """Returns `row` as JSON data."""

    @abstractmethod
    def decoded(self, data: Any) -> Row:
        """
        Returns the row that the JSON data `data` describe. Raises ValueError, KeyError
        or TypeError if `data` do not describe a row.
        """

    def __enter__(self) -> Self:
        try:
            text = self.path.read_text("utf-8") if self.path.exists() else ""
            lines = text.splitlines(keepends=True)
            if lines and not lines[-1].endswith("\n"):
                cut = lines.pop()
                if not lines and not json.dumps(self._header).startswith(cut):
                    raise self._foreign("it is not the journal of a search")
            self._read(lines)
            self._file = self.path.open("w" if not lines else "r+", encoding="utf-8")
            self._file.truncate(sum(len(line.encode()) for line in lines))
            self._file.seek(0, 2)
            if not lines:
                self._write(self._header)
        except UnicodeDecodeError as error:
            raise self._foreign("it is not text") from error
        except OSError as error:
            raise DistIRError(
                f"cannot use the file {self.path} to resume: {error.strerror}"
            ) from error
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._file is not None:
            self._file.close()

    def add(self, rows: Iterable[Row]) -> None:
        """Appends rows to the file."""
        for row in rows:
            self._write(self.encoded(row))

    def _write(self, data: object) -> None:
        assert self._file is not None
        with errors_name(self.path):
            self._file.write(json.dumps(data) + "\n")
            self._file.flush()

    def _read(self, lines: list[str]) -> None:
        if not lines:
            return
        try:
            header, *results = [json.loads(line) for line in lines]
            if header != self._header:
                raise self._foreign(
                    "it holds the search of other programs, or of another cluster"
                )
            self.results = [self.decoded(data) for data in results]
        except (ValueError, KeyError, TypeError) as error:
            raise self._foreign("it is not the journal of a search") from error

    def _foreign(self, why: str) -> DistIRError:
        return DistIRError(
            f"{self.path} cannot be resumed: {why}; give another file, or remove it"
        )


class Journal(JournalFile[Result]):
    """
    The journal of a search over a grid of plans. Its rows are the results of plans.
    """

    def __init__(self, path: Path, programs: Programs):
        super().__init__(path, {"format": _FORMAT, "programs": _digest(programs)})

    def encoded(self, row: Result) -> Mapping[str, Any]:
        return row.to_json()

    def decoded(self, data: Any) -> Result:
        return from_json(data)


def _digest(programs: Programs) -> dict[str, str]:
    """
    Returns the identity of a search: hashes of the programs by batch size, of the
    profiles and of the user's requests.
    """
    texts = {str(batch): text for batch, text in sorted(programs.texts.items())}
    if programs.profiles:
        texts["profiles"] = repr(programs.profiles)
    if programs.requests.shard or programs.requests.whole:
        texts["requests"] = repr((programs.requests.shard, programs.requests.whole))
    return {
        name: hashlib.sha256(text.encode()).hexdigest() for name, text in texts.items()
    }
