"""Prints a lowered TIR function as one plain C function: no runtime, no packed calls, register tiles as scalars.

* A multiply whose result is only added becomes TT_FMA, so that every core and the host round alike (contracts.md, 7);
  without `fuse` it stays two operations, which numpy can repeat to the bit.
* `acc = acc + (condition ? value : 0)` becomes `if (condition) acc = acc + value`: taps in the padding cost nothing.
* An internal buffer that is indexed by constants only becomes scalars; a larger one becomes the scratch parameter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tinytrain_compile.lower.c_tree import Declaration, If, Line, Loop, Statement, render, tidy
from tinytrain_compile.lower.tir_walk import children, kind_of, op_name

C_TYPES = {
    "int8": "int8_t",
    "uint8": "uint8_t",
    "int16": "int16_t",
    "uint16": "uint16_t",
    "int32": "int32_t",
    "uint32": "uint32_t",
    "int64": "int64_t",
    "uint64": "uint64_t",
    "float32": "float",
    "bool": "bool",
}
_BINARY = {
    "Mul": ("*", 12),
    "Div": ("/", 12),
    "Mod": ("%", 12),
    "FloorDiv": ("/", 12),  # operands are never negative where these survive simplification: asserted by kernels' tests
    "FloorMod": ("%", 12),
    "Add": ("+", 11),
    "Sub": ("-", 11),
    "LT": ("<", 9),
    "LE": ("<=", 9),
    "GT": (">", 9),
    "GE": (">=", 9),
    "EQ": ("==", 8),
    "NE": ("!=", 8),
    "And": ("&&", 4),
    "Or": ("||", 3),
    "LShift": ("<<", 10),
    "RShift": (">>", 10),
    "BitwiseAnd": ("&", 7),
    "BitwiseXor": ("^", 6),
    "BitwiseOr": ("|", 5),
}
_BITWISE = {
    "shift_left": ("<<", 10),
    "shift_right": (">>", 10),
    "bitwise_and": ("&", 7),
    "bitwise_xor": ("^", 6),
    "bitwise_or": ("|", 5),
}
_COMPARISONS = ("<", "<=", ">", ">=", "==", "!=")
_SHORT = ("int8", "uint8", "int16", "uint16")
_EXACT_TYPE = ("TensorLoad", "Cast", "IntImm")
_ATOM, _UNARY, _TERNARY = 15, 14, 2
_SCALAR_LIMIT = 64
"""An internal buffer of more elements than this must be scratch: it would land on the stack."""


@dataclass(frozen=True)
class Expr:
    """C text, its precedence, the loop variables it reads, and whether it reads memory."""

    text: str
    level: int = _ATOM
    variables: frozenset[str] = frozenset()
    loads: bool = False

    def at(self, level: int) -> str:
        """The text, in parentheses if it binds less tightly than `level`."""
        return self.text if self.level >= level else f"({self.text})"


def _join(text: str, level: int, parts: Sequence[Expr], loads: bool = False) -> Expr:
    variables = frozenset[str]().union(*(p.variables for p in parts))
    return Expr(text, level, variables, loads or any(p.loads for p in parts))


def _dtype(node: Any) -> str:
    return str(node.ty.dtype) if hasattr(node, "ty") and hasattr(node.ty, "dtype") else str(node.dtype)


def _is_helper(node: Any) -> bool:
    return kind_of(node) == "Call" and op_name(node) in ("call_extern", "call_pure_extern")


def float_literal(value: float) -> str:
    """A float32 constant that reads back to the same bits."""
    text = str(np.float32(value))
    if not np.isfinite(value):
        raise ValueError(f"no C literal for {value}")
    return text + ("f" if any(c in text for c in ".e") else ".0f")


@dataclass(frozen=True)
class Parameter:
    """One C parameter: its name, the TIR buffer behind it, and whether it may alias another parameter."""

    name: str
    buffer: Any
    may_alias: bool


class Printer:
    """Prints one function. `parameters`: of the PrimFunc, in order; `same`: output index -> the input it overwrites."""

    def __init__(self, function: Any, parameters: Sequence[Parameter], same: dict[int, int], fuse: bool = True) -> None:
        self._function = function
        self._fuse = fuse
        self._aliases: dict[Any, Any] = {}
        self._names: dict[Any, str] = {}
        self._used: set[str] = {"scratch", "TT_FMA"}
        self._scalars: dict[Any, bool] = {}
        self._scratch: Any = None
        self.scratch_bytes = 0
        self._parameters = list(parameters)
        for p in parameters:
            self._name(p.buffer, p.name)
        for out, source in same.items():
            self._aliases[parameters[out].buffer] = parameters[source].buffer
        self._same = same
        self._written: set[Any] = set()
        self._used_buffers: set[Any] = set()
        self._addressed: set[Any] = set()
        self._dynamic: set[Any] = set()
        self._allocated: list[Any] = []
        self._survey(function.body)

    # ---- names and buffers --------------------------------------------------------------------------------------

    def _root(self, buffer: Any) -> Any:
        while buffer in self._aliases:
            buffer = self._aliases[buffer]
        return buffer

    def _name(self, var: Any, hint: str = "") -> str:
        if var not in self._names:
            base = "".join(c if c.isalnum() else "_" for c in (hint or var.name)).replace("_local", "") or "v"
            name, count = base, 1
            while name in self._used:
                name, count = f"{base}_{count}", count + 1
            self._used.add(name)
            self._names[var] = name
        return self._names[var]

    def _survey(self, node: Any) -> None:
        """Find aliases, allocations, written buffers and buffers with computed indices."""
        kind = kind_of(node)
        if kind == "DeclBuffer":
            self._aliases[node.buffer] = node.data.args[0]
        elif kind == "AllocBuffer":
            self._allocated.append(node.buffer)
        elif kind == "Call" and op_name(node) == "address_of":
            self._addressed.add(self._root(node.args[0].source))
        elif kind in ("BufferStore", "TensorLoad"):
            buffer = node.buffer if kind == "BufferStore" else node.source
            if kind == "BufferStore":
                self._written.add(self._root(buffer))
            self._used_buffers.add(self._root(buffer))
            if len(node.indices) != 1 or kind_of(node.indices[0]) != "IntImm":
                self._dynamic.add(self._root(buffer))
        for child in children(node):
            self._survey(child)

    def _touched(self, buffer: Any) -> bool:
        return self._root(buffer) in self._used_buffers

    @property
    def addressed(self) -> set[int]:
        """Parameters whose address is handed to a helper, which may write there."""
        return {i for i, p in enumerate(self._parameters) if self._root(p.buffer) in self._addressed}

    @property
    def scratch_dtype(self) -> str:
        """Element type of the scratch parameter; "" if there is none."""
        return "" if self._scratch is None else str(self._scratch.dtype)

    # ---- the function -------------------------------------------------------------------------------------------

    def print(self, name: str) -> tuple[str, str]:
        """(definition, declaration) of the C function."""
        body = tidy(self._body(self._function.body))
        unread = [p.name for i, p in enumerate(self._parameters) if i not in self._same and not self._touched(p.buffer)]
        body = [*(Line(f"(void){unused};") for unused in unread), *body]
        head = f"void {name}({', '.join(self._signature())})"
        return "\n".join([head + " {", *render(body), "}"]) + "\n", head + ";"

    def _signature(self) -> list[str]:
        parts: list[str] = []
        for index, p in enumerate(self._parameters):
            if index in self._same:
                continue
            const = "" if self._root(p.buffer) in self._written | self._addressed else "const "
            restrict = "" if p.may_alias else "restrict "
            parts.append(f"{const}{C_TYPES[str(p.buffer.dtype)]} *{restrict}{p.name}")
        if self._scratch is not None:
            parts.append(f"{C_TYPES[str(self._scratch.dtype)]} *restrict {self._name(self._scratch)}")
        return parts

    # ---- statements ---------------------------------------------------------------------------------------------

    def _body(self, node: Any) -> list[Statement]:
        kind = kind_of(node)
        if kind == "SeqStmt":
            return [s for item in node.seq for s in self._body(item)]
        if kind == "For":
            return [self._loop(node)]
        if kind == "BufferStore":
            return [self._store(node)]
        if kind == "AllocBuffer":
            return self._allocate(node.buffer)
        if kind == "DeclBuffer":
            return []
        if kind == "Bind":
            value = self._expr(node.value)
            return [Line(f"const {C_TYPES[_dtype(node.value)]} {self._name(node.var)} = {value.text};")]
        if kind == "IfThenElse":
            otherwise = [] if node.else_case is None else self._body(node.else_case)
            return [self._if(self._expr(node.condition), self._body(node.then_case), otherwise)]
        if kind == "AttrStmt":
            return self._body(node.body)
        if kind == "Evaluate" and kind_of(node.value) == "IntImm":
            return []
        raise NotImplementedError(f"TIR statement {kind}")

    def _loop(self, node: Any) -> Loop:
        low = self._expr(node.min)
        extent = self._expr(node.extent)
        high = extent.text if low.text == "0" else f"{low.text} + {extent.text}"
        if kind_of(node.min) == "IntImm" and kind_of(node.extent) == "IntImm":
            high = str(int(node.min.value) + int(node.extent.value))
        return Loop(self._name(node.loop_var), low.text, high, self._body(node.body))

    def _if(self, condition: Expr, body: list[Statement], otherwise: list[Statement]) -> If:
        return If(condition.text, condition.variables, not condition.loads, body, otherwise)

    def _store(self, node: Any) -> Statement:
        target = self._element(node.buffer, node.indices[0])
        value = node.value
        guarded = self._guarded_sum(node, target)
        if guarded is not None:
            return guarded
        text = self._expr(value).text
        dtype = str(node.buffer.dtype)
        if dtype in _SHORT and kind_of(value) not in _EXACT_TYPE and not _is_helper(value):
            text = f"({C_TYPES[dtype]})({text})"
        return Line(f"{target} = {text};")

    def _guarded_sum(self, node: Any, target: str) -> Statement | None:
        """`t = t + if_then_else(c, v, 0)` (or a maximum with the lowest number) as a conditional statement."""
        value = node.value
        neutral = {"Add": 0.0, "Max": float(np.finfo(np.float32).min)}.get(kind_of(value))
        if neutral is None or kind_of(value.b) != "Call" or op_name(value.b) != "if_then_else":
            return None
        condition, term, other = value.b.args
        if self._expr(value.a).text != target or kind_of(other) not in ("FloatImm", "IntImm"):
            return None
        if float(other.value) != neutral:
            return None
        total = self._sum(value.a, term, value) if neutral == 0.0 else self._largest(value.a, term)
        return self._if(self._expr(condition), [Line(f"{target} = {total.text};")], [])

    def _allocate(self, buffer: Any) -> list[Statement]:
        elements = 1
        for dim in buffer.shape:
            elements *= int(dim)
        ctype = C_TYPES[str(buffer.dtype)]
        if buffer not in self._dynamic and elements <= _SCALAR_LIMIT:
            self._scalars[buffer] = True
            # Only the elements that are used: a partitioned tail of a tile touches a part of it.
            names = [f"{self._name(buffer)}_{i}" for i in sorted(self._constant_indices(buffer))]
            return [Declaration(ctype, names)]
        if self._scratch is not None and str(self._scratch.name) != str(buffer.name):
            raise ValueError(f"a kernel has two internal buffers, {self._scratch.name} and {buffer.name}")
        self._scratch = buffer  # the peeled end of a loop has a copy of its own, in the same place
        self._names[buffer] = "scratch"
        self.scratch_bytes = max(self.scratch_bytes, elements * np.dtype(str(buffer.dtype)).itemsize)
        return []

    def _constant_indices(self, buffer: Any) -> set[int]:
        found: set[int] = set()

        def visit(node: Any) -> None:
            kind = kind_of(node)
            if kind in ("BufferStore", "TensorLoad"):
                this = node.buffer if kind == "BufferStore" else node.source
                if self._root(this) is buffer or self._root(this) == buffer:
                    found.add(int(node.indices[0].value))
            for child in children(node):
                visit(child)

        visit(self._function.body)
        return found

    # ---- expressions --------------------------------------------------------------------------------------------

    def _element(self, buffer: Any, index: Any) -> str:
        root = self._root(buffer)
        if root in self._scalars:
            return f"{self._name(root)}_{int(index.value)}"
        return f"{self._name(root)}[{self._expr(index).text}]"

    def _expr(self, node: Any) -> Expr:
        kind = kind_of(node)
        if kind == "IntImm":
            return self._integer(node)
        if kind == "FloatImm":
            text = float_literal(float(node.value))
            return Expr(text, _UNARY if text.startswith("-") else _ATOM)
        if kind in ("Var", "SizeVar"):
            name = self._name(node)
            return Expr(name, _ATOM, frozenset([name]))
        if kind == "TensorLoad":
            index = self._expr(node.indices[0])
            return Expr(self._element(node.source, node.indices[0]), _ATOM, index.variables, True)
        return self._compound(node, kind)

    def _compound(self, node: Any, kind: str) -> Expr:
        fused = self._fused(node, kind)
        if fused is not None:
            return fused
        if kind in _BINARY:
            return self._infix(_BINARY[kind], node.a, node.b)
        if kind in ("Max", "Min"):
            return self._largest(node.a, node.b, ">" if kind == "Max" else "<")
        if kind == "Not":
            inner = self._expr(node.a)
            return _join(f"!{inner.at(_UNARY)}", _UNARY, (inner,))
        if kind == "Cast":
            inner = self._expr(node.value)
            return _join(f"({C_TYPES[_dtype(node)]}){inner.at(_UNARY)}", _UNARY, (inner,))
        if kind == "Select":
            return self._choice(node.condition, node.true_value, node.false_value)
        if kind == "Call":
            return self._call(node)
        raise NotImplementedError(f"TIR expression {kind}")

    def _integer(self, node: Any) -> Expr:
        value, dtype = int(node.value), _dtype(node)
        if dtype == "bool":
            return Expr("true" if value else "false")
        text = f"{value}u" if dtype.startswith("u") else str(value)
        return Expr(text, _UNARY if value < 0 else _ATOM)

    def _infix(self, operator: tuple[str, int], left: Any, right: Any) -> Expr:
        symbol, level = operator
        a, b = self._expr(left), self._expr(right)
        # C compilers warn about && within || and mixed bit operators without parentheses.
        strict = level if 11 <= level <= 12 else 11 if symbol in _COMPARISONS else 13
        left_text = a.at(level if symbol in ("+", "-", "*", "&&", "||") else strict)
        return _join(
            f"{left_text} {symbol} {b.at(level if symbol in ('&&', '||') else max(strict, level + 1))}", level, (a, b)
        )

    def _fused(self, node: Any, kind: str) -> Expr | None:
        """a + b*c as TT_FMA(b, c, a); the multiply is looked for on the right first, then on the left."""
        if kind != "Add" or not self._fuse:
            return None
        if kind_of(node.b) == "Mul":
            return self._sum(node.a, node.b, node)
        return self._sum(node.b, node.a, node) if kind_of(node.a) == "Mul" else None

    def _sum(self, addend: Any, term: Any, whole: Any) -> Expr:
        if self._fuse and kind_of(term) == "Mul" and _dtype(whole) == "float32":
            a, b, c = self._expr(term.a), self._expr(term.b), self._expr(addend)
            return _join(f"TT_FMA({a.text}, {b.text}, {c.text})", _ATOM, (a, b, c))
        return self._infix(_BINARY["Add"], addend, term)

    def _largest(self, left: Any, right: Any, sign: str = ">") -> Expr:
        a, b = self._expr(left), self._expr(right)
        return _join(f"{a.at(10)} {sign} {b.at(10)} ? {a.at(3)} : {b.at(3)}", _TERNARY, (a, b))

    def _choice(self, condition: Any, yes: Any, no: Any) -> Expr:
        c, a, b = self._expr(condition), self._expr(yes), self._expr(no)
        return _join(f"{c.at(3)} ? {a.at(3)} : {b.at(3)}", _TERNARY, (c, a, b))

    def _call(self, node: Any) -> Expr:
        name, args = op_name(node), list(node.args)
        if name in _BITWISE:
            return self._infix(_BITWISE[name], args[0], args[1])
        if name == "address_of":
            element = self._expr(args[0])
            return _join(f"&{element.text}", _UNARY, (element,))
        if _is_helper(node):
            parts = [self._expr(a) for a in args[1:]]
            return _join(f"{args[0].value}({', '.join(p.text for p in parts)})", _ATOM, parts)
        if name == "if_then_else":
            return self._choice(*args)
        if name == "likely":
            return self._expr(args[0])
        raise NotImplementedError(f"TIR call {name}")
