"""The derivative check: what one training step changes, against central differences of the loss of the model file.

    file_loss.py   the loss of samples as the file and the options define it, in float64, and its slopes
    optimizers.py  the formulas of the optimizers: which gradient a change of state implies
    judged.py      the numpy reference as a step that is judged: parameters in numbers of the file, before and after
    check.py       the comparison in float32

    integer_step.py    an int8 step as a step that is judged: the gradient that its updates show
    rates.py           which rates show it
    samples.py         samples of it, and its rounded tensors by the names of the file
    integer_slopes.py  both sides: slope and distance
    integer_rule.py    momentum, and the norm of the update before
    integers.py        the comparison in int8

Nothing here uses the compiler's differentiation, losses, kernels or updates. It relies on `ImportedModel.sources`, the
map between numbers of the file and parameters, which tests judge by itself.
"""

from tinytrain_compile.driver.derivative.check import check_derivative

__all__ = ["check_derivative"]
