"""
Reads the commands of a shell script without running them. The reader understands
variables, arrays, default values, arithmetic, continued lines, comments and `if`.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from distir.errors import DistIRError

_CONTINUED = "\x01"
"""Marks the place in a quoted text where a backslash continues the line."""


class Word(NamedTuple):
    """A word of a command, and its line number in the script."""

    text: str
    line: int


class _WordPart(NamedTuple):
    """
    A part of a word: its text, whether it is quoted, and whether a `$` in it is
    literal.
    """

    text: str
    quoted: bool
    literal: bool


@dataclass
class _Raw:
    """
    A word before its variables are replaced. In an assignment `NAME=(...)`, `array` has
    the items.
    """

    line: int
    parts: list[_WordPart] = field(default_factory=list[_WordPart])
    array: list[_Raw] | None = None

    @property
    def plain(self) -> str:
        """The text of the word without quotes and without replacement of variables."""
        return "".join(part.text for part in self.parts)


class _Statement(NamedTuple):
    """
    A command, and the operator (such as `&&` or `;`) between the preceding command and
    it.
    """

    sign: str
    words: list[_Raw]


class _Lexer:
    """Divides a script into raw words and the operators that end commands."""

    def __init__(self, text: str, path: str):
        self.text, self.path = text, path
        self.at, self.line = 0, 1

    def error(self, why: str, line: int | None = None) -> DistIRError:
        """
        Returns an error that names the file and `line`, by default the current line.
        """
        return DistIRError(f"{self.path}, line {line or self.line}: {why}")

    def peek(self, count: int = 1) -> str:
        return self.text[self.at : self.at + count]

    def take(self, count: int = 1) -> str:
        found = self.peek(count)
        self.at += len(found)
        self.line += found.count("\n")
        return found

    def statements(self, end: str = "") -> list[_Statement]:
        """
        Returns the commands up to the closing character `end`, or up to the end of the
        script.
        """
        found = [_Statement("", [])]
        while True:
            item = self.item(end)
            if item is None:
                return [each for each in found if each.words]
            if isinstance(item, str):
                if found[-1].words:
                    found.append(_Statement(item, []))
            else:
                found[-1].words.append(item)

    def item(self, end: str) -> _Raw | str | None:
        """
        Returns the next word, or the next operator as a string, or None at `end` or at
        the end of the script. Redirections and comments are skipped.
        """
        while True:
            if self.peek(2) == "\\\n":
                self.take(2)
            elif self.peek() in (" ", "\t", "\r"):
                if not self.take():
                    return None
            elif self.peek() == "#":
                while self.peek() not in ("", "\n"):
                    self.take()
            else:
                break
        if self.at >= len(self.text):
            if end:
                raise self.error(f"the script ends before a {end!r}")
            return None
        if end and self.peek() == end:
            self.take()
            return None
        if end == ")" and self.peek() == "\n":  # in an array lines are only spaces
            self.take()
            return self.item(end)
        for sign in ("&&", "||", ";;", ";", "\n", "&", "|"):
            if self.peek(len(sign)) == sign:
                return self.take(len(sign))
        if self.peek() in "()":
            return self.take()
        if redirect := re.match(r"\d*(>>|>&|>|<<<|<)\s*", self.text[self.at :]):
            self.take(redirect.end())
            self.item(end)
            return self.item(end)
        return self.word()

    def word(self) -> _Raw:
        word = _Raw(self.line)
        while (sign := self.peek()) and sign not in " \t\r\n;|)(":
            if sign == "&" and self.peek(2) != "&>":
                break
            if sign == "'":
                self.take()
                end = self.text.find("'", self.at)
                if end < 0:
                    raise self.error("a quote ' is not closed", word.line)
                word.parts.append(_WordPart(self.take(end - self.at), True, True))
                self.take()
            elif sign == '"':
                self.take()
                word.parts.append(_WordPart(self.quoted(word.line), True, False))
            elif sign == "\\":
                self.take()
                if self.peek() == "\n":
                    self.take()
                    if not word.parts:
                        word.line = self.line
                else:
                    word.parts.append(_WordPart(self.take(), True, True))
            elif sign in "$`":
                word.parts.append(_WordPart(self.variable(), False, False))
            else:
                word.parts.append(_WordPart(self.take(), False, False))
                if self.peek() == "(" and re.fullmatch(r"\w+\+?=", word.plain):
                    self.take()
                    items = self.statements(")")
                    word.array = [item for each in items for item in each.words]
                    return word
        if not word.parts and self.peek():
            word.parts.append(_WordPart(self.take(), False, False))
        return word

    def quoted(self, line: int) -> str:
        found = ""
        while (sign := self.peek()) != '"':
            if not sign:
                raise self.error('a quote " is not closed', line)
            if sign == "\\":
                self.take()
                if self.peek() == "\n":
                    self.take()
                    found += _CONTINUED
                else:
                    if self.peek() not in '"\\$`':
                        found += "\\"
                    found += self.take()
            elif sign in "$`":
                found += self.variable()
            else:
                found += self.take()
        self.take()
        return found

    def variable(self) -> str:
        """
        Reads `$NAME`, `${...}`, `$(...)` or a command in backquotes, and returns its
        text. Raises DistIRError if a bracket or backquote is not closed.
        """
        line = self.line
        if self.peek() == "`":
            end = self.text.find("`", self.at + 1)
            if end < 0:
                raise self.error("a quote ` is not closed", line)
            return self.take(end + 1 - self.at)
        opened = self.peek(2)[1:]
        closing = {"{": "}", "(": ")"}.get(opened)
        if closing is None:
            name = re.match(r"\$(\w+|[@*#?!$-])?", self.text[self.at :])
            assert name is not None
            return self.take(name.end())
        depth, at = 0, self.at + 1
        while at < len(self.text):
            depth += {opened: 1, closing: -1}.get(self.text[at], 0)
            at += 1
            if not depth:
                return self.take(at - self.at)
        raise self.error(f"${opened} is not closed", line)


class Script:
    """
    The commands of a shell script. `commands` are its simple commands in order, with
    variables replaced; a variable without a value stays as written. `notes` lists the
    conditions that DistIR could not decide; they count as false.
    """

    def __init__(self, text: str, path: str, given: Mapping[str, str] | None = None):
        """
        Reads `text`, the script in the file `path`. `given` are values of variables,
        which override assignments in the script. Raises DistIRError, with the line, for
        a script that cannot be read.
        """
        self.path = path
        self.given = dict(given or {})
        self.variables: dict[str, list[Word] | Word] = {
            name: Word(value, 0) for name, value in self.given.items()
        }
        self.commands: list[list[Word]] = []
        self.notes: list[str] = []
        self._lexer = _Lexer(text, path)
        self._run(self._lexer.statements())

    def _run(self, statements: list[_Statement]) -> None:
        taken: list[list[bool]] = []  # for each `if`: whether now, and whether ever
        rest = list(reversed(statements))
        while rest:
            words = rest.pop().words
            tests = [_Statement("", words)]
            if words[0].plain in ("if", "elif"):
                while rest and rest[-1].sign in ("&&", "||"):
                    tests.append(rest.pop())
            while words and words[0].plain in ("then", "do", "{", "}", "done", "!"):
                words = words[1:]
            if not words:
                continue
            first = words[0].plain
            active = all(state[0] for state in taken)
            if first == "case" and active:
                raise self._lexer.error(
                    "`case` is not understood; write the branch that is meant",
                    words[0].line,
                )
            if first == "if":
                truth = active and self._conditions(tests)
                taken.append([truth, truth])
            elif first in ("elif", "else") and taken:
                outer = all(state[0] for state in taken[:-1])
                truth = outer and not taken[-1][1]
                if truth and first == "elif":
                    truth = self._conditions(tests)
                taken[-1] = [truth, truth or taken[-1][1]]
                if first == "else" and len(words) > 1 and truth:
                    self._simple(words[1:])
            elif first == "fi" and taken:
                taken.pop()
            elif active and first == "for" and len(words) > 3:
                values = self._words(words[3:])
                self.variables[words[1].plain] = (values or [Word("", 0)])[0]
            elif active and first not in ("while", "until", "function"):
                self._simple(words)

    def _simple(self, words: list[_Raw]) -> None:
        """
        Processes a simple command: assignments set variables, and other commands are
        appended to `commands`.
        """
        while words and words[0].plain in ("export", "local", "declare", "readonly"):
            words = [w for w in words[1:] if not w.plain.startswith("-")]
        index = 0
        for word in words:
            match = re.match(r"(\w+)(\+?)=", word.plain)
            if match is None:
                break
            self._assign(word, match[1], bool(match[2]), match.end())
            index += 1
        if found := self._words(words[index:]):
            self.commands.append(found)

    def _assign(self, word: _Raw, name: str, adds: bool, begin: int) -> None:
        if name in self.given:
            return
        old = self.variables.get(name)
        if word.array is not None:
            items = self._words(word.array)
            if adds and old is not None:
                items = [*(old if isinstance(old, list) else [old]), *items]
            self.variables[name] = items
            return
        text = ""
        for part in word.parts:
            skipped = min(begin, len(part.text))
            begin -= skipped
            piece = part.text[skipped:]
            text += piece if part.literal else self._replaced(piece, word.line)
        if adds and isinstance(old, Word):
            text = old.text + text
        self.variables[name] = Word(text, word.line)

    def _words(self, raws: list[_Raw]) -> list[Word]:
        """
        Returns the words with their variables replaced, and split at spaces as a shell
        does.
        """
        found: list[Word] = []
        for raw in raws:
            current: str | None = None
            line = raw.line
            for part in raw.parts:
                if part.literal:
                    current = (current or "") + part.text
                    continue
                array = re.fullmatch(r"\$\{(\w+)\[[@*]\]\}", part.text)
                items = self.variables.get(array[1]) if array else None
                if array and items is not None:
                    items = items if isinstance(items, list) else [items]
                    for item in items:
                        found += [item] if part.quoted else _split(item)
                    continue
                text = self._replaced(part.text, raw.line)
                if part.quoted:
                    current = (current or "") + text.replace(_CONTINUED, "")
                elif part.text[:1] in "$`" and _known(text, part.text):
                    source = self.variables.get(part.text.strip("${}"))
                    at = source.line if isinstance(source, Word) else line
                    pieces = _split(Word(text, at or line))
                    if pieces and current is None:
                        found += pieces[:-1]
                        current, line = pieces[-1].text, pieces[-1].line
                    elif pieces:
                        found.append(Word((current or "") + pieces[0].text, line))
                        found += pieces[1:-1]
                        current = pieces[-1].text if len(pieces) > 1 else None
                        if current is None:
                            current = found.pop().text
                else:
                    current = (current or "") + text
            if current is not None:
                found.append(Word(current, line))
        return found

    def _replaced(self, text: str, line: int) -> str:
        """
        Returns `text` with variables and arithmetic replaced. Variables and expressions
        without a known value stay as written.
        """

        def value(match: re.Match[str]) -> str:
            if match["sum"] is not None:
                return self._sum(match["sum"], line) or match[0]
            name = match["name"] or match["braced"] or ""
            known = self.variables.get(name)
            if isinstance(known, list):
                known = Word(" ".join(word.text for word in known), line)
            rest = match["rest"] or ""
            if rest.startswith((":-", "-", ":=", "=")):
                if known is not None and known.text and known.text != match[0]:
                    return known.text
                default = rest.lstrip(":")[1:].strip("\"'")
                return self._replaced(default, line)
            if known is None or rest:
                return match[0]
            return known.text

        return _VARIABLE.sub(value, text)

    def _sum(self, text: str, line: int) -> str:
        """
        Returns the value of an arithmetic expression, or "" if the expression cannot be
        evaluated.
        """
        text = self._replaced(text, line)

        def named(match: re.Match[str]) -> str:
            known = self.variables.get(match[0])
            return known.text if isinstance(known, Word) else match[0]

        text = re.sub(r"[A-Za-z_]\w*", named, text).replace("/", "//")
        try:
            return str(_evaluated(ast.parse(text.strip(), mode="eval").body))
        except (SyntaxError, ValueError, ZeroDivisionError):
            return ""

    def _conditions(self, tests: list[_Statement]) -> bool:
        """Whether conditions joined by && and || hold, evaluated from left to right."""
        truth = self._condition(tests[0].words[1:])
        for sign, words in tests[1:]:
            if (sign == "&&") == truth:
                truth = self._condition(words)
        return truth

    def _condition(self, words: list[_Raw]) -> bool:
        """
        Whether a condition holds. A condition that cannot be decided counts as false,
        with a note.
        """
        line = words[0].line if words else 0
        texts = [self._test_text(word) for word in words]
        if texts and texts[0] in ("[", "[[", "test"):
            texts = [text for text in texts[1:] if text not in ("]", "]]")]
        negated = texts[:1] == ["!"]
        texts = texts[1:] if negated else texts
        truth: bool | None = None
        if len(texts) == 2 and texts[0] in ("-n", "-z"):
            truth = bool(texts[1]) == (texts[0] == "-n")
        elif len(texts) == 1 and words[0].plain in ("[", "[["):
            truth = bool(texts[0])
        elif len(texts) == 3 and texts[1] in _TEXT_TESTS:
            truth = _TEXT_TESTS[texts[1]](texts[0], texts[2])
        elif len(texts) == 3 and texts[1] in _NUMBER_TESTS and _are_numbers(texts[::2]):
            truth = _NUMBER_TESTS[texts[1]](int(texts[0]), int(texts[2]))
        if len(texts) == 2 and texts[0] in ("-f", "-d", "-e"):
            return False  # no file is looked at
        if truth is None:
            self.notes.append(
                f"{self.path}, line {line}: the condition "
                f"{' '.join(word.plain for word in words)!r} cannot be decided here and "
                f"is taken to be false"
            )
            return False
        return truth != negated

    def _test_text(self, word: _Raw) -> str:
        text = "".join(
            part.text if part.literal else self._replaced(part.text, word.line)
            for part in word.parts
        )
        return "" if re.fullmatch(r"\$\{?\w+\}?", text) else text


_VARIABLE = re.compile(
    r"\$\(\((?P<sum>.*?)\)\)|\$(?P<name>\w+)|\$\{(?P<braced>\w+)(?P<rest>[^{}]*(?:\{[^{}]*\}[^{}]*)*)\}"
)

_TEXT_TESTS: dict[str, Callable[[str, str], bool]] = {
    "=": operator.eq, "==": operator.eq, "!=": operator.ne
}  # fmt: skip

_NUMBER_TESTS: dict[str, Callable[[int, int], bool]] = {
    "-eq": operator.eq, "-ne": operator.ne, "-gt": operator.gt, "-ge": operator.ge,
    "-lt": operator.lt, "-le": operator.le,
}  # fmt: skip

_OPERATORS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod,
}  # fmt: skip


def _evaluated(node: ast.expr) -> int:
    """
    Returns the value of an expression of integers. Raises ValueError if the expression
    has anything but integers and their operators.
    """
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_evaluated(node.operand)
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        function = _OPERATORS[type(node.op)]
        return function(_evaluated(node.left), _evaluated(node.right))
    raise ValueError


def _are_numbers(texts: list[str]) -> bool:
    return all(text.lstrip("-").isdigit() for text in texts)


def _known(text: str, written: str) -> bool:
    """
    Whether a variable's value was found, so that `text`, after replacement, differs
    from `written`.
    """
    return text != written


def _split(word: Word) -> list[Word]:
    """
    Returns the words in the text of `word`, split at spaces and line ends, each with
    the number of its own line.
    """
    found: list[Word] = []
    for match in re.finditer(r"[^\s\x01]+", word.text):
        before = word.text[: match.start()]
        lines = before.count("\n") + before.count(_CONTINUED)
        found.append(Word(match[0], word.line + lines))
    return found
