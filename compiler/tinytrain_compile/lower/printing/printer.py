"""Prints a lowered TIR function as one plain C function: no runtime, no packed calls, register tiles as scalars.

* A multiply whose result is only added becomes TT_FMA, so that every core and the host round alike
  (docs/contract.md, 7); without `fuse` it stays two operations, which numpy can repeat to the bit.
* `acc = acc + (condition ? value : 0)` becomes `if (condition) acc = acc + value`: taps in the padding cost nothing.
* An internal buffer that is indexed by constants only becomes scalars; a larger one becomes the scratch parameter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tinytrain_compile.lower.intrinsics import dsp
from tinytrain_compile.lower.printing.c_expr import (
    ATOM,
    BINARY,
    BITWISE,
    C_TYPES,
    COMPARISONS,
    EXACT_TYPE,
    SHORT,
    TERNARY,
    UNARY,
    Expr,
    dtype_of,
    float_literal,
    is_helper,
    join,
)
from tinytrain_compile.lower.printing.c_tree import Declaration, If, Line, Loop, Statement, render, tidy
from tinytrain_compile.lower.printing.conditions import tests_of
from tinytrain_compile.lower.printing.scratch import Scratch
from tinytrain_compile.lower.tir_walk import buffers_of, children, elements, kind_of, op_name

_SCALAR_LIMIT = 64
"""An internal buffer of more elements than this must be scratch: it would land on the stack."""


@dataclass(frozen=True)
class Parameter:
    """One C parameter: its name, the TIR buffer behind it, and whether it may alias another parameter.

    fixed: tests of what it points to may be made before a loop.
    """

    name: str
    buffer: Any
    may_alias: bool
    fixed: bool = False


class Printer:
    """Prints one function. `parameters`: of the PrimFunc, in order; `same`: output index -> the input it overwrites.

    unroll_moves: mark loops that only move data, to be unrolled.
    """

    def __init__(
        self,
        function: Any,
        parameters: Sequence[Parameter],
        same: dict[int, int],
        fuse: bool = True,
        unroll_moves: bool = True,
    ) -> None:
        self._function = function
        self._fuse = fuse
        self._unroll_moves = unroll_moves
        self._aliases: dict[Any, Any] = {}
        self._names: dict[Any, str] = {}
        self._used: set[str] = {"scratch", "TT_FMA"}
        self._scalars: dict[Any, bool] = {}
        self._parameters = list(parameters)
        self._fixed = {p.buffer for p in parameters if p.fixed}
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
        self._elements: dict[Any, set[int]] = {}  # buffer -> the constants that it is indexed by
        self._survey(function.body)
        self.scratch = Scratch(filter(self._is_scratch, self._allocated))
        self._used.update(self.scratch.names)

    # ---- names and buffers --------------------------------------------------------------------------------------

    def _root(self, buffer: Any) -> Any:
        while buffer in self._aliases:
            buffer = self._aliases[buffer]
        return buffer

    def _name(self, var: Any, hint: str = "") -> str:
        if var not in self._names:
            base = "".join(c if c.isalnum() else "_" for c in (hint or var.name)).replace("_local", "") or "v"
            self._names[var] = self._fresh(base)
        return self._names[var]

    def _fresh(self, base: str) -> str:
        """A name that nothing else in the function has."""
        name, count = base, 1
        while name in self._used:
            name, count = f"{base}_{count}", count + 1
        self._used.add(name)
        return name

    def _survey(self, node: Any) -> None:
        """Find aliases, allocations, written buffers and buffers with computed indices."""
        kind = kind_of(node)
        if kind == "DeclBuffer":
            self._aliases[node.buffer] = node.data.args[0]
        elif kind == "AllocBuffer":
            self._allocated.append(node.buffer)
        elif is_helper(node):
            self._survey_helper(node)
            return
        elif kind in ("BufferStore", "TensorLoad"):
            buffer = self._root(node.buffer if kind == "BufferStore" else node.source)
            if kind == "BufferStore":
                self._written.add(buffer)
            self._used_buffers.add(buffer)
            if len(node.indices) != 1 or kind_of(node.indices[0]) != "IntImm":
                self._dynamic.add(buffer)
        for child in children(node):
            self._survey(child)

    def _survey_helper(self, node: Any) -> None:
        """A helper may write through the addresses that it is given, unless it is known for what it does."""
        name = str(node.args[0].value)
        for place, argument in enumerate(node.args[1:]):
            if kind_of(argument) != "Call" or op_name(argument) != "address_of":
                self._survey(argument)
                continue
            root, index = self._root(argument.args[0].source), argument.args[0].indices[0]
            if kind_of(index) != "IntImm" or root not in self._allocated or root.scope() != "local":
                self._dynamic.add(root)
            self._used_buffers.add(root)
            self._survey(index)
            if name not in dsp.READS_ONLY and place < dsp.WRITES_FIRST.get(name, place + 1):
                self._addressed.add(root)

    def _is_scratch(self, buffer: Any) -> bool:
        return buffer in self._dynamic or elements(buffer) > _SCALAR_LIMIT

    @property
    def addressed(self) -> set[int]:
        """Parameters whose address is handed to a helper, which may write there."""
        return {i for i, p in enumerate(self._parameters) if self._root(p.buffer) in self._addressed}

    # ---- the function -------------------------------------------------------------------------------------------

    def print(self, name: str, part: Any = None, counts: Sequence[Any] = ()) -> tuple[str, str]:
        """(definition, declaration) of the C function.

        part: of the function's body, with what it uses as parameters; counts: variables that are parameters as well.
        """
        counted = [f"int32_t {self._name(count)}" for count in counts]
        body = tidy(self._body(self._function.body if part is None else part))
        parameters = self.parameters_of(part)
        unread = [p.name for p in parameters if self._root(p.buffer) not in self._used_buffers]
        pointers = self.scratch.pointers(None if part is None else {str(buffer.name) for buffer in buffers_of(part)})
        body = [*(Line(f"(void){unused};") for unused in unread), *map(Line, pointers), *body]
        signature = [*map(self._declared, parameters), *counted, *self.scratch.parameter()]
        head = f"void {name}({', '.join(signature)})"
        return "\n".join([head + " {", *render(body), "}"]) + "\n", head + ";"

    def parameters_of(self, part: Any = None) -> list[Parameter]:
        """The operands that are parameters of the C function: all, or those that a part of its body uses."""
        used = None if part is None else {self._root(buffer) for buffer in buffers_of(part)}
        own = (p for index, p in enumerate(self._parameters) if index not in self._same)
        return [p for p in own if used is None or self._root(p.buffer) in used]

    def _declared(self, p: Parameter) -> str:
        const = "" if self._root(p.buffer) in self._written | self._addressed else "const "
        return f"{const}{C_TYPES[str(p.buffer.dtype)]} *{'' if p.may_alias else 'restrict '}{p.name}"

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
            return [Line(f"const {C_TYPES[dtype_of(node.value)]} {self._name(node.var)} = {value.text};")]
        if kind == "IfThenElse":
            otherwise = [] if node.else_case is None else self._body(node.else_case)
            return [If(tests_of(node.condition, self._expr), self._body(node.then_case), otherwise)]
        if kind == "AttrStmt":
            return self._body(node.body)
        if kind == "Evaluate":
            return [] if kind_of(node.value) == "IntImm" else [Line(f"{self._expr(node.value).text};")]
        raise NotImplementedError(f"TIR statement {kind}")

    def _loop(self, node: Any) -> Loop:
        low = self._expr(node.min)
        extent = self._expr(node.extent)
        high = extent.text if low.text == "0" else f"{low.text} + {extent.text}"
        if kind_of(node.min) == "IntImm" and kind_of(node.extent) == "IntImm":
            high = str(int(node.min.value) + int(node.extent.value))
        return Loop(self._name(node.loop_var), low.text, high, self._body(node.body), self._moves(node.body))

    def _moves(self, body: Any) -> bool:
        return (
            self._unroll_moves
            and kind_of(body) == "BufferStore"
            and str(self._root(body.buffer).name) in self.scratch.names
        )

    def _store(self, node: Any) -> Statement:
        target = self._element(node.buffer, node.indices[0])
        value = node.value
        guarded = self._guarded_sum(node, target)
        if guarded is not None:
            return guarded
        dtype = str(node.buffer.dtype)
        chosen = kind_of(value) == "Call" and op_name(value) == "if_then_else"
        if chosen and str(node.buffer.name) in self.scratch.names:
            condition, yes, no = value.args
            lines = [[self._assignment(target, side, dtype)] for side in (yes, no)]
            return If(tests_of(condition, self._expr), *lines)
        return self._assignment(target, value, dtype)

    def _assignment(self, target: str, value: Any, dtype: str) -> Statement:
        text = self._expr(value).text
        if dtype in SHORT and kind_of(value) not in EXACT_TYPE and not is_helper(value):
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
        return If(tests_of(condition, self._expr), [Line(f"{target} = {total.text};")], [])

    def _allocate(self, buffer: Any) -> list[Statement]:
        if self._is_scratch(buffer):
            self._names[buffer] = self.scratch.named(str(buffer.name))
            return []
        self._scalars[buffer] = True
        # Only the elements that are used: a partitioned tail of a tile touches a part of it.
        names = [f"{self._name(buffer)}_{i}" for i in sorted(self._constant_indices(buffer))]
        return [Declaration(C_TYPES[str(buffer.dtype)], names)]

    _inside: Callable[[Any], list[Any]] = staticmethod(children)

    def _constant_indices(self, buffer: Any) -> set[int]:
        """Elements of a register tile that are used."""
        if not self._elements:
            self._collect_elements(self._function.body)
        return self._elements.get(buffer, set())

    def _collect_elements(self, node: Any) -> None:
        kind = kind_of(node)
        if kind in ("BufferStore", "TensorLoad") and kind_of(node.indices[0]) == "IntImm":
            root = self._root(node.buffer if kind == "BufferStore" else node.source)
            self._elements.setdefault(root, set()).add(int(node.indices[0].value))
        for child in self._inside(node):
            self._collect_elements(child)

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
            return Expr(text, UNARY if text.startswith("-") else ATOM)
        if kind in ("Var", "SizeVar"):
            name = self._name(node)
            return Expr(name, ATOM, frozenset([name]))
        if kind == "TensorLoad":
            index = self._expr(node.indices[0])
            loads = self._root(node.source) not in self._fixed
            return Expr(self._element(node.source, node.indices[0]), ATOM, index.variables, loads)
        return self._compound(node, kind)

    def _compound(self, node: Any, kind: str) -> Expr:
        fused = self._fused(node, kind)
        if fused is not None:
            return fused
        if kind in BINARY:
            return self._infix(BINARY[kind], node.a, node.b)
        if kind in ("Max", "Min"):
            return self._largest(node.a, node.b, ">" if kind == "Max" else "<")
        if kind == "Not":
            inner = self._expr(node.a)
            return join(f"!{inner.at(UNARY)}", UNARY, (inner,))
        if kind == "Cast":
            inner = self._expr(node.value)
            return join(f"({C_TYPES[dtype_of(node)]}){inner.at(UNARY)}", UNARY, (inner,))
        if kind == "Select":
            return self._choice(node.condition, node.true_value, node.false_value)
        if kind == "Call":
            return self._call(node)
        raise NotImplementedError(f"TIR expression {kind}")

    def _integer(self, node: Any) -> Expr:
        value, dtype = int(node.value), dtype_of(node)
        if dtype == "bool":
            return Expr("true" if value else "false")
        text = f"{value}u" if dtype.startswith("u") else str(value)
        return Expr(text, UNARY if value < 0 else ATOM)

    def _infix(self, operator: tuple[str, int], left: Any, right: Any) -> Expr:
        symbol, level = operator
        a, b = self._operands(symbol, left, right)
        # C compilers warn about && within || and mixed bit operators without parentheses.
        strict = level if 11 <= level <= 12 else 11 if symbol in COMPARISONS else 13
        left_level = level if symbol in ("+", "-", "*", "&&", "||") else strict
        right_level = level if symbol in ("&&", "||") else max(strict, level + 1)
        return join(f"{a.at(left_level)} {symbol} {b.at(right_level)}", level, (a, b))

    def _operands(self, symbol: str, left: Any, right: Any) -> tuple[Expr, Expr]:
        return self._expr(left), self._expr(right)

    def _fused(self, node: Any, kind: str) -> Expr | None:
        """a + b*c as TT_FMA(b, c, a); the multiply is looked for on the right first, then on the left."""
        if kind != "Add" or not self._fuse:
            return None
        if kind_of(node.b) == "Mul":
            return self._sum(node.a, node.b, node)
        return self._sum(node.b, node.a, node) if kind_of(node.a) == "Mul" else None

    def _sum(self, addend: Any, term: Any, whole: Any) -> Expr:
        if self._fuse and kind_of(term) == "Mul" and dtype_of(whole) == "float32":
            a, b, c = self._expr(term.a), self._expr(term.b), self._expr(addend)
            return join(f"TT_FMA({a.text}, {b.text}, {c.text})", ATOM, (a, b, c))
        return self._infix(BINARY["Add"], addend, term)

    def _largest(self, left: Any, right: Any, sign: str = ">") -> Expr:
        a, b = self._expr(left), self._expr(right)
        return join(f"{a.at(10)} {sign} {b.at(10)} ? {a.at(3)} : {b.at(3)}", TERNARY, (a, b))

    def _choice(self, condition: Any, yes: Any, no: Any) -> Expr:
        c, a, b = self._expr(condition), self._expr(yes), self._expr(no)
        return join(f"{c.at(3)} ? {a.at(3)} : {b.at(3)}", TERNARY, (c, a, b))

    def _call(self, node: Any) -> Expr:
        name, args = op_name(node), list(node.args)
        if name in BITWISE:
            return self._infix(BITWISE[name], args[0], args[1])
        if name == "address_of":
            element = self._expr(args[0])
            return join(f"&{element.text}", UNARY, (element,))
        if is_helper(node):
            parts = [self._expr(a) for a in args[1:]]
            return join(f"{args[0].value}({', '.join(p.text for p in parts)})", ATOM, parts)
        if name == "if_then_else":
            return self._choice(*args)
        if name == "likely":
            return self._expr(args[0])
        raise NotImplementedError(f"TIR call {name}")
