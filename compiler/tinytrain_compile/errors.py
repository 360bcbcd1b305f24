"""Errors with an id, a place, a reason and a way out; the exit codes of contracts.md, section 3."""

from __future__ import annotations

from dataclasses import dataclass

EXIT_OK, EXIT_INTERNAL, EXIT_INPUT, EXIT_DOES_NOT_FIT, EXIT_UNSUPPORTED, EXIT_VERIFY = range(6)


@dataclass(frozen=True)
class ErrorKind:
    """One documented error: exit code and the long text that --explain prints."""

    exit_code: int
    title: str
    explanation: str


ERRORS: dict[str, ErrorKind] = {}


def _kind(code: str, exit_code: int, title: str, explanation: str) -> None:
    ERRORS[code] = ErrorKind(exit_code, title, explanation)


class CompileError(Exception):
    """An error that the user can do something about. Prints as `error[E0203]: where: what; what to try`."""

    def __init__(self, code: str, where: str, what: str, try_: str, details: tuple[str, ...] = ()) -> None:
        super().__init__(f"error[{code}]: {_line(where)}: {_line(what)}; {_line(try_)}")
        self.code = code
        self.details = details
        """Further lines for the terminal (the does-not-fit block); never part of the one-line error."""

    @property
    def exit_code(self) -> int:
        """The process exit code of this error."""
        return ERRORS[self.code].exit_code


def _line(text: str) -> str:
    """Names come from untrusted files: one printable line, whatever is in them."""
    cleaned = "".join(c if c.isprintable() else "?" for c in text)
    return cleaned if len(cleaned) <= 400 else cleaned[:397] + "..."


# E01xx: usage and files
_kind("E0101", EXIT_INPUT, "bad option value", "An option's value is not of the form that --help shows.")
_kind("E0102", EXIT_INPUT, "unknown target", "Use a name from --list-targets or the path of a target TOML file.")
_kind("E0103", EXIT_INPUT, "bad target file", "A target file is TOML with known keys only; the message names the key.")
_kind("E0104", EXIT_INPUT, "cannot write the output", "The folder beside -o must be writable; nothing was changed.")
_kind("E0105", EXIT_INPUT, "bad data file", "--data is an .npz with arrays `x` (ONNX layout, samples first) and `y`.")
# E02xx: the model file
_kind("E0201", EXIT_INPUT, "cannot read the model", "The file is missing, unreadable, or not an ONNX protobuf.")
_kind("E0202", EXIT_INPUT, "the model is not valid ONNX", "The ONNX checker refuses the graph; the message quotes it.")
_kind("E0203", EXIT_INPUT, "dynamic shape", "Every dimension but a symbolic batch must be a number: --input-shape.")
_kind("E0204", EXIT_INPUT, "bad dimension", "A dimension is zero, negative, or too large for a microcontroller.")
_kind("E0205", EXIT_INPUT, "bad weights", "A weight holds NaN or infinity, or its data is shorter than its shape.")
_kind("E0206", EXIT_INPUT, "names clash or are empty", "Two values or nodes have one name.")
_kind("E0207", EXIT_INPUT, "the graph has a cycle or reads an unknown value", "Nodes must be in topological order.")
_kind("E0208", EXIT_INPUT, "opset not supported", "Opset 13 and later of the default domain is read.")
_kind("E0209", EXIT_INPUT, "inputs or outputs", "A model has one data input, one output, and perhaps labels.")
_kind("E0210", EXIT_INPUT, "external data", "External data must lie beside the model file, inside its folder.")
_kind("E0211", EXIT_INPUT, "batch size", "The batch of the ONNX input must be 1 or symbolic; use --batch to accumulate.")
_kind("E0212", EXIT_INPUT, "shapes do not fit together", "An operator's inputs have shapes that it cannot take.")
# E03xx: training set-up
_kind("E0301", EXIT_INPUT, "no such layer", "An --update pattern matches no parametrised node; see the nearest names.")
_kind("E0302", EXIT_INPUT, "bad update scheme", "The scheme file's format is described in docs/update-schemes.md.")
_kind("E0303", EXIT_INPUT, "nothing to train", "No parameter is selected, or none leads to the loss.")
_kind("E0304", EXIT_INPUT, "loss and output do not match", "cross-entropy wants (batch, classes); mse and bce any shape.")
_kind("E0305", EXIT_INPUT, "bad labels", "Labels must match the loss: class indices, or values of the output's shape.")
# E04xx: memory
_kind("E0401", EXIT_DOES_NOT_FIT, "does not fit", "The arena is too small; the block shows why and what would fit.")
# E05xx: unsupported
_kind("E0501", EXIT_UNSUPPORTED, "unsupported operators", "All unsupported nodes are listed, with the nearest form.")
_kind("E0502", EXIT_UNSUPPORTED, "no gradient", "An operator between a trained layer and the loss has no gradient.")
# E06xx: verification
_kind("E0601", EXIT_VERIFY, "verification failed", "The generated C and the reference disagree; please report this.")
_kind("E0602", EXIT_VERIFY, "the firmware did not run", "The build or the emulator failed; the message quotes it.")
_kind("E0603", EXIT_VERIFY, "NaN loss", "The loss became NaN: lower --lr, or look at the data.")
# E09xx: internal
_kind("E0901", EXIT_INTERNAL, "internal error", "A bug in the compiler; please report it with the model.")
