"""Printing of a lowered TIR function as one plain C function: no runtime, no packed calls, register tiles as scalars.

* A multiply whose result is only added becomes TT_FMA, so that every core and the host round the same
  (docs/contract.md, 7): once or, in a project with TT_HAS_FMA 0, twice.
* `acc = acc + (condition ? value : 0)` becomes `if (condition) acc = acc + value`: taps in the padding cost nothing.
* An internal buffer indexed only by constants becomes scalars; a larger one becomes the scratch parameter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from tvm import ir, tirx
from tvm.tirx import Buffer, PrimFunc, Stmt

from tinytrain_compile.lower.intrinsics import tensor as instructions
from tinytrain_compile.lower.left_out import kept_sums, told_row, without_border
from tinytrain_compile.lower.names import LoopNames
from tinytrain_compile.lower.printing.c_text import (
    ATOM,
    BINARY,
    BITWISE,
    C_TYPES,
    COMPARISONS,
    EXACT_TYPE,
    SHORT,
    TERNARY,
    UNARY,
    Declaration,
    Expr,
    If,
    Line,
    Loop,
    Scratch,
    Statement,
    dtype_of,
    float_literal,
    join,
    render,
    tidy,
)
from tinytrain_compile.lower.printing.patterns import in_one_call, tests_of
from tinytrain_compile.lower.tir_walk import (
    ByNode,
    Tir,
    accessed,
    addressed,
    buffers_of,
    children,
    declared,
    elements,
    has_two_operands,
    helper_name,
    is_call,
    is_helper,
    kind_of,
    op_name,
)

_SCALAR_LIMIT = 64
"""Most elements of an internal buffer outside scratch: a larger one would end up on the stack."""


@dataclass(frozen=True)
class Parameter:
    """One C parameter: its name, its TIR buffer, and whether it may alias another parameter.

    fixed: tests of its contents may be made before a loop.
    """

    name: str
    buffer: Buffer
    may_alias: bool
    fixed: bool = False


class Printer:
    """Printer of one function. `parameters`: of the PrimFunc, in order; `same`: output index -> the input it
    overwrites.

    unroll_moves: mark loops that only move data, to be unrolled. loops: names of loops.
    """

    def __init__(
        self,
        function: PrimFunc,
        parameters: Sequence[Parameter],
        same: dict[int, int],
        unroll_moves: bool = True,
        loops: LoopNames | None = None,
    ) -> None:
        self._function = function
        self._unroll_moves = unroll_moves
        self._loops = loops or LoopNames()
        self._aliases, self._names = ByNode[Buffer](), ByNode[str]()
        self._used: set[str] = {"scratch", "TT_FMA"}
        self._scalars = ByNode[bool]()
        self._parameters = list(parameters)
        self._fixed = {p.buffer for p in parameters if p.fixed}
        for p in parameters:
            self._name(p.buffer, p.name)
        for out, source in same.items():
            self._aliases[parameters[out].buffer] = parameters[source].buffer
        self._same = same
        self._written: set[Buffer] = set()
        self._used_buffers: set[Buffer] = set()
        self._addressed: set[Buffer] = set()
        self._dynamic: set[Buffer] = set()
        self._allocated: list[Buffer] = []
        self._elements: dict[Buffer, set[int]] = {}  # buffer -> its constant indices
        self._survey(function.body)
        self.scratch = Scratch(filter(self._is_scratch, self._allocated))
        self._used.update(self.scratch.names)

    # ---- names and buffers --------------------------------------------------------------------------------------

    def _root(self, buffer: Buffer) -> Buffer:
        while buffer in self._aliases:
            buffer = self._aliases[buffer]
        return buffer

    def _name(self, var: ir.Var, hint: str = "") -> str:
        if var not in self._names:
            base = "".join(c if c.isalnum() else "_" for c in (hint or var.name)).replace("_local", "") or "v"
            self._names[var] = self._fresh(base)
        return self._names[var]

    def _fresh(self, base: str) -> str:
        """Return a name that is unique in the function."""
        name, count = base, 1
        while name in self._used:
            name, count = f"{base}_{count}", count + 1
        self._used.add(name)
        return name

    def _survey(self, node: Tir) -> None:
        """Find aliases, allocations, written buffers and buffers with computed indices."""
        if type(node) is tirx.DeclBuffer:
            self._aliases[node.buffer] = declared(node)
        elif type(node) is tirx.AllocBuffer:
            self._allocated.append(node.buffer)
        elif is_helper(node):
            self._survey_helper(node)
            return
        elif (access := accessed(node)) is not None:
            buffer, indices = self._root(access[0]), access[1]
            if type(node) is tirx.BufferStore:
                self._written.add(buffer)
            self._used_buffers.add(buffer)
            if len(indices) != 1 or type(indices[0]) is not tirx.IntImm:
                self._dynamic.add(buffer)
        for child in children(node):
            self._survey(child)

    def _survey_helper(self, node: ir.Call) -> None:
        """Note that a helper may write through its addresses, unless its effects are known."""
        name = helper_name(node)
        for place, argument in enumerate(node.args[1:]):
            if not is_call(argument, "address_of"):
                self._survey(argument)
                continue
            element = addressed(argument)
            root, index = self._root(element.source), element.indices[0]
            if not isinstance(index, tirx.IntImm) or root not in self._allocated or root.scope() != "local":
                self._dynamic.add(root)
            self._used_buffers.add(root)
            self._survey(index)
            if name not in instructions.READS_ONLY and place < instructions.WRITES_FIRST.get(name, place + 1):
                self._addressed.add(root)

    def _is_scratch(self, buffer: Buffer) -> bool:
        many = buffer in self._dynamic or elements(buffer) > _SCALAR_LIMIT
        return many and buffer.scope() != instructions.ARRAY

    @property
    def addressed(self) -> set[int]:
        """Parameters whose address is passed to a helper, which may write there."""
        return {i for i, p in enumerate(self._parameters) if self._root(p.buffer) in self._addressed}

    # ---- the function -------------------------------------------------------------------------------------------

    def print(
        self, name: str, part: Stmt | None = None, counts: Sequence[ir.Var] = (), numbers: Sequence[ir.Var] = ()
    ) -> tuple[str, str]:
        """Return (definition, declaration) of the C function.

        part: of the function's body; only operands that it uses become parameters. counts: variables that are
        parameters as well. numbers: variables that come from a table, the last parameter.
        """
        counted = [f"int32_t {self._name(count)}" for count in counts]
        loads = [f"const int32_t {self._name(one)} = numbers[{place}];" for place, one in enumerate(numbers)]
        table = ["const int32_t *restrict numbers"] if numbers else []
        body = tidy(self._body(self._function.body if part is None else part))
        parameters = self.parameters_of(part)
        unread = [p.name for p in parameters if self._root(p.buffer) not in self._used_buffers]
        pointers = self.scratch.pointers(None if part is None else {str(buffer.name) for buffer in buffers_of(part)})
        body = [*(Line(f"(void){unused};") for unused in unread), *map(Line, [*pointers, *loads]), *body]
        signature = [*map(self._declared, parameters), *counted, *self.scratch.parameter(), *table]
        head = f"void {name}({', '.join(signature)})"
        return "\n".join([head + " {", *render(body), "}"]) + "\n", head + ";"

    def parameters_of(self, part: Stmt | None = None) -> list[Parameter]:
        """Return the operands that are parameters of the C function: all, or those that a part of its body uses."""
        used = None if part is None else {self._root(buffer) for buffer in buffers_of(part)}
        own = (p for index, p in enumerate(self._parameters) if index not in self._same)
        return [p for p in own if used is None or self._root(p.buffer) in used]

    def _declared(self, p: Parameter) -> str:
        const = "" if self._root(p.buffer) in self._written | self._addressed else "const "
        return f"{const}{C_TYPES[str(p.buffer.dtype)]} *{'' if p.may_alias else 'restrict '}{p.name}"

    # ---- statements ---------------------------------------------------------------------------------------------

    def _body(self, node: Stmt) -> list[Statement]:
        if isinstance(node, tirx.SeqStmt):
            return [s for item in kept_sums(node.seq) for s in self._body(item)]
        if isinstance(node, tirx.For):
            return [self._in_one_call(node) or self._loop(node)]
        if isinstance(node, tirx.BufferStore):
            return [self._store(node)]
        if isinstance(node, tirx.AllocBuffer):
            return self._allocate(node.buffer)
        if isinstance(node, tirx.DeclBuffer):
            return []
        if isinstance(node, tirx.Bind):
            value = self._expr(node.value)
            return [Line(f"const {C_TYPES[dtype_of(node.value)]} {self._name(node.var)} = {value.text};")]
        if isinstance(node, tirx.IfThenElse):
            otherwise = [] if node.else_case is None else self._body(node.else_case)
            return [If(tests_of(node.condition, self._expr), self._body(node.then_case), otherwise)]
        if isinstance(node, tirx.AttrStmt):
            return self._body(node.body)
        if isinstance(node, tirx.Evaluate):
            return [] if isinstance(node.value, tirx.IntImm) else [Line(f"{self._expr(node.value).text};")]
        raise NotImplementedError(f"TIR statement {kind_of(node)}")

    def _in_one_call(self, node: tirx.For) -> Statement | None:
        """Return a loop that only moves data as one call; free the names that a failed attempt gave to its loops."""
        used = set(self._used)
        call = in_one_call(node, self._element, self._expr, self._may_overlap) if self._unroll_moves else None
        if call is not None:
            self._used = used
        return call

    def _may_overlap(self, one: Buffer, other: Buffer) -> bool:
        """Tell whether two buffers may share bytes: the same one, or two parameters without `restrict`."""
        roots = {self._root(one), self._root(other)}
        return len(roots) == 1 or all(p.may_alias for p in self._parameters if self._root(p.buffer) in roots)

    def _loop(self, node: tirx.For) -> Loop:
        low, extent = self._expr(node.min), self._expr(node.extent)
        high = extent.text if low.text == "0" else f"{low.text} + {extent.text}"
        if isinstance(node.extent, tirx.Sub) and node.extent.b.same_as(node.min):
            high = self._expr(node.extent.a).text
        if isinstance(node.min, tirx.IntImm) and isinstance(node.extent, tirx.IntImm):
            high = str(int(node.min.value) + int(node.extent.value))
        var = self._name(node.loop_var, self._loops.of(node.loop_var))
        return Loop(var, low.text, high, self._body(without_border(node)), self._moves(node.body))

    def _moves(self, body: Stmt) -> bool:
        return (
            self._unroll_moves
            and isinstance(body, tirx.BufferStore)
            and str(self._root(body.buffer).name) in self.scratch.names
        )

    def _store(self, node: tirx.BufferStore) -> Statement:
        target = self._element(node.buffer, node.indices[0])
        value = node.value
        guarded = self._guarded_sum(node, target)
        if guarded is not None:
            return guarded
        dtype = str(node.buffer.dtype)
        if is_call(value, "if_then_else") and str(node.buffer.name) in self.scratch.names:
            condition, yes, no = value.args
            lines = [[self._assignment(target, side, dtype)] for side in (yes, no)]
            return If(tests_of(condition, self._expr), *lines)
        return self._assignment(target, value, dtype)

    def _assignment(self, target: str, value: ir.Expr, dtype: str) -> Statement:
        text = self._expr(value).text
        if dtype in SHORT and not isinstance(value, EXACT_TYPE) and not is_helper(value):
            text = f"({C_TYPES[dtype]})({text})"
        return Line(f"{target} = {text};")

    def _guarded_sum(self, node: tirx.BufferStore, target: str) -> Statement | None:
        """Return `t = t + if_then_else(c, v, 0)` (or a maximum with the lowest number) as a conditional statement."""
        value = node.value
        if not isinstance(value, tirx.Add | tirx.Max) or not is_call(value.b, "if_then_else"):
            return None
        neutral = 0.0 if isinstance(value, tirx.Add) else float(np.finfo(np.float32).min)
        condition, term, other = value.b.args
        if self._expr(value.a).text != target or not isinstance(other, tirx.FloatImm | tirx.IntImm):
            return None
        if float(other.value) != neutral:
            return None
        total = self._sum(value.a, term, value) if neutral == 0.0 else self._largest(value.a, term)
        return If(tests_of(condition, self._expr), [Line(f"{target} = {total.text};")], [])

    def _allocate(self, buffer: Buffer) -> list[Statement]:
        if self._is_scratch(buffer):
            self._names[buffer] = self.scratch.named(str(buffer.name))
            return []
        if buffer.scope() == instructions.ARRAY:
            return [Line(f"{C_TYPES[str(buffer.dtype)]} {self._name(buffer)}[{elements(buffer)}];")]
        self._scalars[buffer] = True
        # Only elements that are used: the peeled end of a tile has a part of them.
        names = [self._register(buffer, i) for i in sorted(self._constant_indices(buffer))]
        return [Declaration(C_TYPES[str(buffer.dtype)], names)]

    def _register(self, buffer: Buffer, index: int) -> str:
        """Return the C variable of one element of a register tile; a single one needs no number."""
        return self._name(buffer) if elements(buffer) == 1 else f"{self._name(buffer)}_{index}"

    _inside: Callable[[Tir], list[Tir]] = staticmethod(children)

    def _constant_indices(self, buffer: Buffer) -> set[int]:
        """Return elements of a register tile that are used."""
        if not self._elements:
            self._collect_elements(self._function.body)
        return self._elements.get(buffer, set())

    def _collect_elements(self, node: Tir) -> None:
        if (access := accessed(node)) is not None and type(index := access[1][0]) is tirx.IntImm:
            self._elements.setdefault(self._root(access[0]), set()).add(int(index))
        for child in self._inside(node):
            self._collect_elements(child)

    # ---- expressions --------------------------------------------------------------------------------------------

    def _element(self, buffer: Buffer, index: ir.Expr) -> str:
        root = self._root(buffer)
        if root in self._scalars:
            return self._register(root, int(index))
        return f"{self._name(root)}[{self._expr(index).text}]"

    def _expr(self, node: ir.Expr) -> Expr:
        if type(node) is tirx.IntImm:
            return self._integer(node)
        if type(node) is tirx.FloatImm:
            text = float_literal(float(node.value))
            return Expr(text, UNARY if text.startswith("-") else ATOM)
        if type(node) is ir.Var:
            # A variable without a name belongs to a loop inside an attempt at one call.
            name = self._name(node, "" if node in self._names else self._loops.of(node))
            return Expr(name, ATOM, frozenset([name]))
        if type(node) is ir.TensorLoad:
            index = self._expr(node.indices[0])
            loads = self._root(node.source) not in self._fixed
            return Expr(self._element(node.source, node.indices[0]), ATOM, index.variables, loads)
        return self._compound(node)

    def _compound(self, node: ir.Expr) -> Expr:
        fused = self._fused(node)
        if fused is not None:
            return fused
        if type(node) is tirx.Max or type(node) is tirx.Min:
            return self._largest(node.a, node.b, ">" if type(node) is tirx.Max else "<")
        if has_two_operands(node):
            return self._infix(BINARY[kind_of(node)], node.a, node.b)
        if isinstance(node, tirx.Not):
            inner = self._expr(node.a)
            return join(f"!{inner.at(UNARY)}", UNARY, (inner,))
        if isinstance(node, tirx.Cast):
            inner = self._expr(node.value)
            return join(f"({C_TYPES[dtype_of(node)]}){inner.at(UNARY)}", UNARY, (inner,))
        if isinstance(node, tirx.Select):
            return self._choice(node.condition, node.true_value, node.false_value)
        if isinstance(node, ir.Call):
            return self._call(node)
        raise NotImplementedError(f"TIR expression {kind_of(node)}")

    def _integer(self, node: tirx.IntImm) -> Expr:
        value, dtype = int(node.value), dtype_of(node)
        if dtype == "bool":
            return Expr("true" if value else "false")
        text = f"{value}u" if dtype.startswith("u") else str(value)
        return Expr(text, UNARY if value < 0 else ATOM)

    def _infix(self, operator: tuple[str, int], left: ir.Expr, right: ir.Expr) -> Expr:
        symbol, level = operator
        a, b = self._operands(symbol, left, right)
        # C compilers warn about && within || and mixed bit operators without parentheses.
        strict = level if 11 <= level <= 12 else 11 if symbol in COMPARISONS else 13
        left_level = level if symbol in ("+", "-", "*", "&&", "||") else strict
        right_level = level if symbol in ("&&", "||") else max(strict, level + 1)
        return join(f"{a.at(left_level)} {symbol} {b.at(right_level)}", level, (a, b))

    def _operands(self, symbol: str, left: ir.Expr, right: ir.Expr) -> tuple[Expr, Expr]:
        return self._expr(left), self._expr(right)

    def _fused(self, node: ir.Expr) -> Expr | None:
        """Return a + b*c as TT_FMA(b, c, a), and a - b*c as TT_FMA(-b, c, a).

        In a sum it looks for the multiplication on the right first, then on the left. 0 - b*c is rounded once anyway.
        """
        if not isinstance(node, tirx.Add | tirx.Sub):
            return None
        if type(node) is tirx.Sub:
            found = type(node.b) is tirx.Mul and dtype_of(node) == "float32" and not _is_zero(node.a)
            return self._sum(node.a, node.b, node, "-") if found else None
        if type(node.b) is tirx.Mul:
            return self._sum(node.a, node.b, node)
        return self._sum(node.b, node.a, node) if type(node.a) is tirx.Mul else None

    def _sum(self, addend: ir.Expr, term: ir.Expr, whole: ir.Expr, sign: str = "") -> Expr:
        """Return addend + term, or addend - term (sign "-"): rounding is the same on both sides of 0."""
        if isinstance(term, tirx.Mul) and dtype_of(whole) == "float32":
            a, b, c = self._expr(term.a), self._expr(term.b), self._expr(addend)
            factor = f"-{a.at(ATOM)}" if sign else a.text
            return join(f"TT_FMA({factor}, {b.text}, {c.text})", ATOM, (a, b, c))
        return self._infix(BINARY["Sub" if sign else "Add"], addend, term)

    def _largest(self, left: ir.Expr, right: ir.Expr, sign: str = ">") -> Expr:
        """Return the larger (or smaller) one: the first, unless the second is. So a running maximum takes no NaN."""
        a, b = self._expr(left), self._expr(right)
        return join(f"{b.at(10)} {sign} {a.at(10)} ? {b.at(3)} : {a.at(3)}", TERNARY, (a, b))

    def _choice(self, condition: ir.Expr, yes: ir.Expr, no: ir.Expr) -> Expr:
        c, a, b = self._expr(condition), self._expr(yes), self._expr(no)
        return join(f"{c.at(3)} ? {a.at(3)} : {b.at(3)}", TERNARY, (c, a, b))

    def _call(self, node: ir.Call) -> Expr:
        name, args = op_name(node), list(node.args)
        if name in BITWISE:
            return self._infix(BITWISE[name], args[0], args[1])
        if name == "address_of":
            element = self._expr(args[0])
            return join(f"&{element.text}", UNARY, (element,))
        if is_helper(node):
            parts = [self._expr(operand) for operand in told_row(node)]
            return join(f"{helper_name(node)}({', '.join(p.text for p in parts)})", ATOM, parts)
        if name == "if_then_else":
            return self._choice(*args)
        if name == "likely":
            return self._expr(args[0])
        raise NotImplementedError(f"TIR call {name}")


def _is_zero(value: ir.Expr) -> bool:
    return type(value) is tirx.FloatImm and float(value.value) == 0.0
