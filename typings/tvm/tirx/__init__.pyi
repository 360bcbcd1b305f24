from collections.abc import Mapping, Sequence
from enum import IntEnum

from tvm.ir import Expr as Expr
from tvm.ir import TensorLoad as TensorLoad
from tvm.ir import Var as Var

BufferLoad = TensorLoad

class Buffer(Var):
    # In TVM an ordinary Var whose type is a BufferType.
    shape: Sequence[Expr]
    def scope(self) -> str: ...

class PrimFunc:
    params: Sequence[Buffer]
    body: Stmt

class IterVar(Expr):
    # No Expr in TVM, but an operand of its operators as one.
    DataPar: int
    CommReduce: int
    var: Var
    iter_type: int

# ---- expressions

class IntImm(Expr):
    value: int

class FloatImm(Expr):
    value: float

class Cast(Expr):
    value: Expr

class BinaryOpExpr(Expr):
    a: Expr
    b: Expr
    def __init__(self, a: Expr | float, b: Expr | float) -> None: ...

class Add(BinaryOpExpr): ...
class Sub(BinaryOpExpr): ...
class Mul(BinaryOpExpr): ...
class Div(BinaryOpExpr): ...
class Mod(BinaryOpExpr): ...
class FloorDiv(BinaryOpExpr): ...
class FloorMod(BinaryOpExpr): ...
class LShift(BinaryOpExpr): ...
class RShift(BinaryOpExpr): ...
class BitwiseAnd(BinaryOpExpr): ...
class BitwiseOr(BinaryOpExpr): ...
class BitwiseXor(BinaryOpExpr): ...
class Min(BinaryOpExpr): ...
class Max(BinaryOpExpr): ...
class EQ(BinaryOpExpr): ...
class NE(BinaryOpExpr): ...
class LT(BinaryOpExpr): ...
class LE(BinaryOpExpr): ...
class GT(BinaryOpExpr): ...
class GE(BinaryOpExpr): ...
class And(BinaryOpExpr): ...
class Or(BinaryOpExpr): ...

class Not(Expr):
    a: Expr

class Select(Expr):
    condition: Expr
    true_value: Expr
    false_value: Expr
    def __init__(self, condition: Expr, true_value: Expr, false_value: Expr) -> None: ...

def const(value: float, dtype: str) -> Expr: ...
def max(a: Expr | float, b: Expr | float) -> Expr: ...
def min(a: Expr | float, b: Expr | float) -> Expr: ...
def indexdiv(a: Expr | int, b: Expr | int) -> Expr: ...
def indexmod(a: Expr | int, b: Expr | int) -> Expr: ...
def bitwise_and(x: Expr | int, y: Expr | int) -> Expr: ...
def shift_right(x: Expr | int, y: Expr | int) -> Expr: ...
def if_then_else(cond: Expr, t: Expr | float, f: Expr | float) -> Expr: ...
def address_of(obj: Expr) -> Expr: ...
def call_extern(dtype: str, func_name: str, *args: Expr | float) -> Expr: ...
def call_pure_extern(dtype: str, func_name: str, *args: Expr | float) -> Expr: ...

# ---- statements

class Stmt: ...

class ForKind(IntEnum):
    SERIAL = 0
    PARALLEL = 1
    VECTORIZED = 2
    UNROLLED = 3

class Bind(Stmt):
    var: Var
    value: Expr

class For(Stmt):
    loop_var: Var
    min: Expr
    extent: Expr
    kind: ForKind
    body: Stmt
    annotations: Mapping[str, object]

class BufferStore(Stmt):
    buffer: Buffer
    value: Expr
    indices: Sequence[Expr]

class AllocBuffer(Stmt):
    buffer: Buffer

class DeclBuffer(Stmt):
    buffer: Buffer
    data: Expr

class AttrStmt(Stmt):
    body: Stmt

class SeqStmt(Stmt):
    seq: Sequence[Stmt]
    def __init__(self, seq: Sequence[Stmt]) -> None: ...

class IfThenElse(Stmt):
    condition: Expr
    then_case: Stmt
    else_case: Stmt | None

class Evaluate(Stmt):
    value: Expr
