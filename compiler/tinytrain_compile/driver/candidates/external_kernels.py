"""External kernels (--kernels FILE.toml): C functions of the user that compute some nodes; docs/external-kernels.md."""

from __future__ import annotations

import re
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields, replace
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path

from tinytrain_compile.driver.checks.project import prefix_of
from tinytrain_compile.emit.c_text import c_identifier
from tinytrain_compile.errors import CompileError
from tinytrain_compile.files.formula import Formula, parse_formula
from tinytrain_compile.files.user_file import Table, TableKind, read_table, read_text
from tinytrain_compile.ir.stages import TrainGraph
from tinytrain_compile.ir.types import External, Node
from tinytrain_compile.ops.external import EXTERNAL_FORMS, external_form
from tinytrain_compile.ops.int8.conv import QConvAttrs
from tinytrain_compile.ops.int8.pointwise import plainly_rounded
from tinytrain_compile.options.compile_options import CompileOptions
from tinytrain_compile.target.model import Features, Target

MOST_WORKSPACE_BYTES = 1 << 30
"""More RAM than any target has: a larger number is a slip, and offsets of a plan stay below 2**31."""
_FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*\.[ch]")
_FILE_BYTES = 4 << 20
"""Largest C file of a user, which is read whole: nobody writes a longer one, so it is the wrong file."""
_FLAGS = tuple(item.name for item in fields(Features) if item.type == "bool")
_KIND = TableKind("E0108", "E0108", "compare with docs/external-kernels.md", "a readable TOML file")


@dataclass(frozen=True)
class KernelEntry:
    """One [[kernel]]: for which nodes (op, layers, when, targets, features), what is called, what it needs.

    files: names of its C files; place: of the entry, for errors.
    """

    op: str
    function: str
    files: tuple[str, ...]
    workspace: Formula
    when: Formula
    layers: tuple[str, ...]
    targets: tuple[str, ...]
    features: tuple[str, ...]
    place: str

    def serves(self, target: Target) -> bool:
        """Tell whether it is for this target."""
        has = asdict(target.features)
        return (not self.targets or target.core_name in self.targets) and all(has[name] for name in self.features)

    def takes(self, node: Node) -> bool:
        """Tell whether it computes this node. Errors: E0108 if its condition has no value there."""
        form = external_form(node) if node.op == self.op else None
        named = not self.layers or any(fnmatchcase(node.origin or node.name, glob) for glob in self.layers)
        return form is not None and named and self._value(self.when, "when", node) != 0

    def external(self, node: Node) -> External:
        """Return what the node gets. Errors: E0108 if the workspace is not a size."""
        size = self._value(self.workspace, "workspace", node)
        if not 0 <= size <= MOST_WORKSPACE_BYTES:
            raise _KIND.error(self.place, f"workspace is {size} bytes for {node.origin or node.name}")
        return External(self.function, size)

    def _value(self, formula: Formula, key: str, node: Node) -> int:
        try:
            return formula.value(EXTERNAL_FORMS[self.op].numbers(node))
        except ValueError as problem:
            raise _KIND.error(self.place, f"{key} {problem} for {node.origin or node.name}") from problem


@dataclass(frozen=True)
class Externals:
    """All entries in order, the texts of their C files by name, and every file that was read."""

    entries: tuple[KernelEntry, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict[str, str])
    paths: tuple[Path, ...] = ()

    def assigned(self, train: TrainGraph, target: Target) -> TrainGraph:
        """Return the graph with external kernels in the nodes that an entry takes; the first such entry counts."""
        entries = [entry for entry in self.entries if entry.serves(target)]
        if not entries:
            return train
        nodes = tuple(_assigned(node, entries) for node in train.graph.nodes)
        return replace(train, graph=replace(train.graph, nodes=nodes))

    def used(self, nodes: Iterable[Node]) -> dict[str, str]:
        """Return the C files of the functions that these nodes call, by name."""
        called = functions_of(nodes)
        names = {name for entry in self.entries if entry.function in called for name in entry.files}
        return {name: text for name, text in self.files.items() if name in names}

    @property
    def functions(self) -> tuple[str, ...]:
        """All that entries name, used or not."""
        return tuple(dict.fromkeys(entry.function for entry in self.entries))


def functions_of(nodes: Iterable[Node]) -> tuple[str, ...]:
    """Return external functions that these nodes call."""
    return tuple(dict.fromkeys(node.external.function for node in nodes if node.external is not None))


def _assigned(node: Node, entries: Iterable[KernelEntry]) -> Node:
    entry = next((entry for entry in entries if entry.takes(node)), None)
    if entry is None:
        return node
    plain = plainly_rounded(node)
    attrs = replace(plain.attrs, once=False) if isinstance(plain.attrs, QConvAttrs) else plain.attrs
    return replace(plain, attrs=attrs, external=entry.external(node))  # such kernels round as CMSIS-NN does: twice


@contextmanager
def blaming(nodes: Iterable[Node]) -> Generator[None]:
    """Turn a failed verification (E0601, E0602) into E0604 where nodes call external functions."""
    functions = functions_of(nodes)
    try:
        yield
    except CompileError as error:
        if not functions or error.code not in ("E0601", "E0602"):
            raise
        way = f"look at {', '.join(functions)} (--kernels), or leave --kernels out"
        raise CompileError("E0604", error.where, error.what, way) from error


def load_externals(options: CompileOptions) -> Externals:
    """Read the kernel files and the C files that they name. Errors: E0108."""
    prefix = prefix_of(options)
    entries: list[KernelEntry] = []
    found: dict[str, Path] = {}
    read: list[Path] = []
    for path in options.kernels:
        root = read_table(path, path.name, _KIND)
        for index, table in enumerate(root.tables("kernel"), 1):
            sources = _sources(table, path.parent, prefix)
            for source in sources:
                if found.setdefault(source.name, source).resolve() != source.resolve():
                    raise table.error("files", f"names a second {source.name}")
            entries.append(_entry(table, sources, f"{path.name}, kernel {index}"))
        root.finish()
        read.append(path)
    texts = {name: _text(source) for name, source in found.items()}
    return Externals(tuple(entries), texts, (*read, *found.values()))


def _entry(table: Table, sources: tuple[Path, ...], place: str) -> KernelEntry:
    op, function = table.text("op"), table.text("function")
    if op not in EXTERNAL_FORMS:
        raise table.error("op", f"is none of {', '.join(EXTERNAL_FORMS)}")
    if not re.fullmatch(r"[A-Za-z]\w{0,59}", function, re.ASCII) or c_identifier(function) != function:
        raise table.error("function", f"is no name for a C function: {function!r}")
    features = table.texts("features") if table.has("features") else ()
    for name in features:
        if name not in _FLAGS:
            raise table.error("features", f"may name {', '.join(_FLAGS)}, not {name!r}")
    entry = KernelEntry(
        op=op,
        function=function,
        files=tuple(source.name for source in sources),
        workspace=_formula(table, "workspace", op, "0"),
        when=_formula(table, "when", op, "1"),
        layers=table.texts("layers") if table.has("layers") else (),
        targets=table.texts("targets") if table.has("targets") else (),
        features=features,
        place=place,
    )
    table.finish()
    return entry


def _formula(table: Table, key: str, op: str, default: str) -> Formula:
    text = table.text(key) if table.has(key) else default
    try:
        return parse_formula(text, EXTERNAL_FORMS[op].names)
    except ValueError as problem:
        raise table.error(key, str(problem)) from problem


def _sources(table: Table, folder: Path, prefix: str) -> tuple[Path, ...]:
    """List the C files of an entry, relative to the folder of the kernel file."""
    names = table.texts("files")
    if not any(name.endswith(".c") for name in names):
        raise table.error("files", "must name a .c file")
    for name in names:
        own = Path(name).name
        if not _FILE_NAME.fullmatch(own):
            raise table.error("files", f"may name .c and .h files, not {name!r}")
        if own.startswith(("tt_", f"{prefix}_")):
            raise table.error("files", f"names {own}, but tt_ and {prefix}_ begin names of generated files")
    return tuple(folder / name for name in names)


def _text(source: Path) -> str:
    """Read a C file's text."""
    if not source.is_file():
        raise _KIND.error(source.name, "no such file")
    if source.stat().st_size > _FILE_BYTES:
        raise _KIND.error(source.name, f"larger than {_FILE_BYTES} bytes")
    return read_text(source, partial(_KIND.error, source.name))
