from collections.abc import Sequence

from tvm.ir import Expr, Var

class ConstIntBound:
    max_value: int

class Analyzer:
    def const_int_bound(self, expr: Expr) -> ConstIntBound: ...
    def simplify(self, expr: Expr | int) -> Expr: ...

def detect_linear_equation(expr: Expr, var_list: Sequence[Var]) -> Sequence[Expr]: ...  # empty if it is none
