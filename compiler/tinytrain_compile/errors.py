"""Every error: an id, a place, a reason and a way out; its exit code, and the text that --explain prints."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

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
        self.code, self.where, self.what = code, _line(where), _line(what)
        self.details = details
        """Further lines for the terminal (the does-not-fit block); never part of the one-line error."""
        self._given = (code, where, what, try_, details)

    def __reduce__(self) -> tuple[Any, ...]:
        """Return what pickles it by its arguments, so that it reaches whoever waits for another process."""
        return type(self), self._given

    @property
    def exit_code(self) -> int:
        """The process exit code of this error."""
        return ERRORS[self.code].exit_code


def _line(text: str) -> str:
    """Make one printable line of a name, whatever is in it: names come from untrusted files."""
    cleaned = "".join(c if c.isprintable() else "?" for c in text)
    return cleaned if len(cleaned) <= 400 else cleaned[:397] + "..."


# E01xx: usage and files
_kind(
    "E0101",
    EXIT_INPUT,
    "bad option value",
    "The command line, or a --config file, gives an option that is unknown, has a value of another form than --help "
    "shows, cannot be combined with another option that is given, or has nothing to do with this model, target or "
    "machine. The message names the option, says why, and what to change. Nothing was compiled. An option is "
    "refused rather than ignored, so that a report never describes a build that you did not ask for; "
    "docs/options.md lists which combinations are possible.",
)
_kind(
    "E0102",
    EXIT_INPUT,
    "unknown target",
    "--target is neither the name of a core or board that the compiler knows nor the path of a file. --list-targets "
    "prints all names, boards below cores. For a part that is not listed, name the core that it has (cortex-m4, "
    "...), or write a board file of your own and give its path: docs/on-your-board.md has the form.",
)
_kind(
    "E0103",
    EXIT_INPUT,
    "bad target file",
    "A target file is TOML, and every key in it has to be one that the compiler reads: a key that is misspelt would "
    "otherwise be ignored, and the plan be made for another part. The message names the key and what is wrong with "
    "it. The files in targets/ and targets/boards are complete examples; docs/on-your-board.md explains the keys of "
    "a board.",
)
_kind(
    "E0104",
    EXIT_INPUT,
    "cannot write the output",
    "The folder of -o cannot be written, or holds a file that this compiler did not write there, or that was changed "
    "since, of a name that it is about to write. manifest.json in the folder lists the files that are its own. --force "
    "overwrites the others of these names; files of any other name always stay. The folder is as it was.",
)
_kind(
    "E0105",
    EXIT_INPUT,
    "bad data file",
    "A file or array with samples, labels, weights or a checkpoint does not have the content that this model needs. "
    "--data and --calib are .npz files with arrays `x` (in the model's ONNX layout, samples first) and, where there "
    "are labels, `y`; docs/first-hour.md shows how to write one. A checkpoint or delta must be of a build of the "
    "same model (the same weights trained, the same optimizer). The message says which array or file it is and what "
    "does not agree: the shape, the type, the number of samples, or values that are not finite.",
)
_kind(
    "E0106",
    EXIT_INPUT,
    "lock does not match",
    "--lock takes the plan.json of an earlier output and uses its order and addresses again, so that a build stays "
    "as it was when the planner changes. They are checked against the model and the options of this run as if they "
    "came from a stranger; the message says what does not agree. Usually another layer is trained, the batch is "
    "another one, or the model was exported again under other names. Give the options that the lock was made with "
    "(report.json beside it has them), or plan anew without --lock.",
)
_kind(
    "E0107",
    EXIT_INPUT,
    "no such memory",
    "--memory names a memory that the target lacks or that a step may not write, or --memory, --arena or --plans "
    "ask for more of one than the target has. Of a board the compiler first keeps back the stack and the reserve "
    "(--reserve), so a memory offers less than its size in the manual. The message lists what there is. Give less, "
    "or take a target file of your own (docs/on-your-board.md).",
)
_kind(
    "E0108",
    EXIT_INPUT,
    "bad kernel file",
    "--kernels takes a TOML file of [[kernel]] entries (docs/external-kernels.md). The message names the entry and the "
    "key, or the layer for which a formula has no sensible value, or the C file that cannot be used.",
)
_kind(
    "E0110",
    EXIT_INPUT,
    "no room for temporary files",
    "Verification builds and runs the firmware in a temporary folder, which cannot be made, or is full. "
    "Set TMPDIR (on Windows TEMP) to a folder with room. Nothing was written.",
)
_kind(
    "E0111",
    EXIT_INPUT,
    "standard output cannot be written",
    "What the command says on standard output could not be written: a full disk, a closed file. An output folder is "
    "complete when it is spoken of there.",
)
_kind(
    "E0112",
    EXIT_INPUT,
    "no place in the file",
    "export, and state_dict of the twin, write what a device has learned into the numbers of your model file. Here "
    "the file has no number that could stand for one of them: it is beyond what an int8 weight of the file can "
    "hold, or the normalisation that was folded into the weight multiplies its channel by 0, or one weight of the "
    "file was learned as several that have become different. The message names the weight and what helps. The "
    "checkpoint itself has everything and stays valid (m_save, m_load).",
)
# E02xx: the model file
_kind(
    "E0201",
    EXIT_INPUT,
    "cannot read the model",
    "The model file is missing, is a folder, or may not be read. Nothing was parsed and nothing was written. Check "
    "the path (it is relative to the folder that the command runs in) and the permissions. A model file that is "
    "named like a command (export, finetune) is reached by ./ in front of its name.",
)
_kind(
    "E0202",
    EXIT_INPUT,
    "the model is not valid ONNX",
    "The file parses, but a part of it breaks the ONNX standard: no graph, a weight of an unknown "
    "type. The message names the part. Export the model again, or run `python -m onnx.checker` on it for a "
    "second opinion.",
)
_kind(
    "E0203",
    EXIT_INPUT,
    "dynamic shape",
    "The memory plan is static, so every dimension must be a number; only the first one (the batch) may be "
    "symbolic, and becomes 1. Give the others with --input-shape NAME=1,3,32,32 or export the model with fixed "
    "shapes.",
)
_kind(
    "E0204",
    EXIT_INPUT,
    "negative dimension",
    "A dimension of an input, a weight or an intermediate result is negative or has no size. Usually a shape was "
    "computed wrongly at export (a kernel that is larger than its input, a Reshape by numbers of another model), or "
    "the file was edited. The message names the value. Run the model in the framework it comes from with the same "
    "input shape, then export it again.",
)
_kind(
    "E0205",
    EXIT_INPUT,
    "a weight is NaN",
    "A weight of the file holds NaN, which training would spread to every other weight within a step. The training "
    "that made the file has diverged, or the file was damaged. Load the last good checkpoint in your framework and "
    "export again; a lower learning rate or clipped gradients there keep it from happening again.",
)
_kind(
    "E0206",
    EXIT_INPUT,
    "names clash",
    "Two inputs, weights, nodes or results of the model have the same name. Names must be unique because update "
    "schemes, reports and errors refer to them, and because ONNX demands it of values. Exporters do not do this; "
    "tools that merge graphs or edit names by hand do. Rename one of the two, for instance with "
    "onnx.compose.add_prefix before merging.",
)
_kind(
    "E0207",
    EXIT_INPUT,
    "the graph has a cycle",
    "Some nodes need each other's results, so that no order of execution exists. ONNX does not allow this; it "
    "happens where graphs are edited by hand. A network with feedback must be exported unrolled, one node per time "
    "step, or with ONNX's own LSTM, GRU or RNN, which the compiler unrolls (docs/recurrent.md).",
)
_kind(
    "E0208",
    EXIT_INPUT,
    "opset too old",
    "Opset 13 and later of the default domain is read as it stands, 7 to 12 through onnx's version converter. The "
    "file is older, or has a node that the converter cannot convert. Export the model again with a newer opset (in "
    "PyTorch opset_version=17), or convert it in the tool it comes from. An opset is the version of the operators' "
    "meanings, so a wrong number in the file cannot simply be raised.",
)
_kind(
    "E0209",
    EXIT_INPUT,
    "data inputs",
    "A model has at most eight data inputs, and one more for the labels of the loss that it ends in. If several inputs "
    "reach no layer, --label names the one with the labels; all others are data. Join inputs into one tensor and split "
    "it inside the model if there are more. See docs/inputs.md.",
)
_kind(
    "E0210",
    EXIT_INPUT,
    "external data outside the model folder",
    "Weights may lie in files beside the model, inside its folder. Absolute paths, `..` and links that lead "
    "outside are refused, because a model from elsewhere could otherwise read any file.",
)
_kind(
    "E0211",
    EXIT_INPUT,
    "batch size",
    "The first dimension of the ONNX input is the batch: 1, symbolic, or fixed to N. A fixed one becomes 1 where the "
    "network treats each sample by itself; here it does not. How many samples an update takes is said by "
    "--batch N; how many of them a step takes at once is chosen, by what --arena holds.",
)
_kind(
    "E0212",
    EXIT_INPUT,
    "shapes do not fit together",
    "An operator's inputs have shapes that it cannot take, or an attribute (stride, axis, pad) makes no sense for"
    " them. The message names the node and the shapes.",
)
_kind(
    "E0213",
    EXIT_INPUT,
    "not an ONNX file",
    "The file does not hold an ONNX protobuf. Files of other frameworks (.pt, .h5, .tflite) must be exported to "
    "ONNX first (torch.onnx.export, tf2onnx), ONNX text must be parsed, and a git-lfs pointer (a text file of three "
    "lines) must be fetched with git lfs pull.",
)
_kind(
    "E0214",
    EXIT_INPUT,
    "the model file is damaged",
    "The file begins like an ONNX protobuf but breaks off or is garbled: typically a copy or download that was "
    "cut short. Compare its size and checksum with the original.",
)
_kind(
    "E0215",
    EXIT_INPUT,
    "a value that nothing defines",
    "A node or an output of the model reads a name that is no input, no weight and no node's result. Usually a "
    "graph was cut by hand; keep the producer of the value, or make the value an input.",
)
_kind(
    "E0216",
    EXIT_INPUT,
    "weight data does not match its shape",
    "A weight's data is shorter or longer than its dimensions and its type say. The file was edited by a program "
    "that changed one and not the other, or it was damaged while it was copied. Compare its checksum with the "
    "original, or export the model again.",
)
_kind(
    "E0217",
    EXIT_INPUT,
    "too large",
    "A tensor has more than 2^28 elements, a dimension above 2^31 or more than 16 dimensions, or what nodes make of "
    "the file's constants takes more than 512 MB (2^24 elements in one), and four times what the file holds. That is "
    "a thousand times more than a microcontroller can hold. Often a shape was computed wrongly.",
)
_kind(
    "E0218",
    EXIT_INPUT,
    "the model must have one output",
    "Training needs one output to put the loss on, and the file has several or none. --model-output NAME says which "
    "it is; what only the other outputs need is then left out of the C. An output of hidden values beside the "
    "result is common in exports for debugging: export without it, or name the result.",
)
_kind(
    "E0219",
    EXIT_INPUT,
    "no data input",
    "Every input of the model is a constant or a label: there is nothing that a sample could be fed to. Usually an "
    "exporter has folded the example input into the graph as a constant. Export with the data as an input of the "
    "graph (in PyTorch an argument of forward, not an attribute of the module).",
)
_kind(
    "E0220",
    EXIT_INPUT,
    "external data missing or too short",
    "The model keeps weights in a file beside it (external data), and that file is missing or ends before the "
    "weight does. Copy all files of the model together, under the names that they were written with; the message "
    "names the file. To have one file, load the model where both are and save it again with "
    "onnx.save(onnx.load(path), other_path).",
)
_kind(
    "E0221",
    EXIT_INPUT,
    "input type",
    "The data input may hold numbers (float32, integers) or truth values. An operator whose result depends on the "
    "width of integers narrower than int32 is not read (a sum of bytes wraps around in the file, and not here). Put a "
    "Cast to float32 or int64 behind the input, or export with a float32 input.",
)
_kind(
    "E0222",
    EXIT_INPUT,
    "no such label input",
    "--label names an input that the model does not have, or that is not what its loss reads as labels. --label is "
    "for models that end in their own loss, and only where the file does not tell which input holds the labels. The "
    "message lists the inputs. Without a loss in the file leave --label out and choose the loss with --loss.",
)
_kind(
    "E0223",
    EXIT_INPUT,
    "a feature of ONNX that is not read",
    "Models with sparse weights, model-local functions or tensors in segments are not read. Export a plain "
    "inference graph: functions can be inlined with onnx.inliner, sparse weights stored dense. The message names "
    "what was found.",
)
_kind(
    "E0224",
    EXIT_INPUT,
    "--input-shape does not fit",
    "--input-shape names an input that the model does not have, or contradicts its rank or one of its fixed "
    "dimensions. It only fills in what the file leaves open (symbolic dimensions); a dimension that the file fixes "
    "stays. Leave the option out for inputs whose shape is complete, or export the model for the shape that you "
    "want.",
)
_kind(
    "E0225",
    EXIT_INPUT,
    "a weight is infinite",
    "A weight tensor holds infinity. Overflow in training or in a conversion to float16 causes this. A single "
    "infinite number (an open Clip bound) is fine, and -infinity in a table counts as the lowest number (masks).",
)
_kind(
    "E0226",
    EXIT_INPUT,
    "a dimension is zero",
    "A tensor with a dimension of zero holds no elements, so there is nothing to compute. Usually a slice or a split "
    "went past the end of an axis at export.",
)
_kind(
    "E0227",
    EXIT_INPUT,
    "a value has no name",
    "An input, an output or a weight of the model has an empty name, so that nothing can refer to it: no node, no "
    "report, no update scheme. ONNX uses the empty name for an optional input that is left out. The file was edited "
    "by hand or written by a faulty tool; export the model again.",
)
_kind(
    "E0228",
    EXIT_INPUT,
    "wrong number of inputs or outputs",
    "A node has more or fewer inputs or outputs than its operator takes in the opset that the file declares, or "
    "leaves one out that it must have (an empty name). The message names the node and the numbers. Usually the "
    "declared opset is not the one that the node was written for: PyTorch and onnx tools agree on it, files that "
    "were edited by hand may not. Export the model again, and check it with `python -m onnx.checker`.",
)
_kind(
    "E0229",
    EXIT_INPUT,
    "bad attribute",
    "An attribute of a node is missing, unknown to its operator in this opset, given twice, or of the wrong type. "
    "The compiler reads no node by half, since an attribute that it skipped could change the result. The message "
    "names the node and the attribute. Often the opset that the file declares is not the one that it was written "
    "for: export it again, or correct the opset.",
)
_kind(
    "E0230",
    EXIT_INPUT,
    "opset too new",
    "The model uses an opset that the installed onnx package does not know yet, so its operators may mean something "
    "else. Update onnx, or export with an older opset.",
)
_kind(
    "E0231",
    EXIT_INPUT,
    "a training graph that cannot be taken over",
    "The file says how it is trained (TrainingInfoProto, or a graph with gradient nodes, such as the training "
    "artifacts of ONNX Runtime), in a way that has no form here: other optimizers, weights with rules of their own, "
    "gradients that are changed before the update, normalisations that use the statistics of a batch. Or the file "
    "of --weights does not fit the graph: an array is missing, has another shape or belongs to no input. "
    "docs/training-graphs.md says what is read. Give the forward model and say the rest by options.",
)
# E03xx: training set-up
_kind(
    "E0301",
    EXIT_INPUT,
    "no such layer",
    "A pattern of --update, or a layer of a scheme file, matches no node of the model that has parameters. Patterns "
    "are names or globs with *, behind commas; quotes keep the shell from reading them. Names are those of ONNX nodes, "
    "and if no node matches, those of modules and parameters as the file has them (f.0, c.weight). The message names "
    "the nearest names, and -v with --update all lists every layer.",
)
_kind(
    "E0302",
    EXIT_INPUT,
    "bad update scheme",
    "A scheme file says layer by layer which bias and which channels are trained, in the form that "
    "docs/update-schemes.md describes. The message names the line or the key: a layer that the model lacks, more "
    "channels than the layer has, an axis that it cannot be cut along, or a scheme that leaves an option nothing to "
    "do. --update auto writes a scheme of this form into the output folder, to begin with.",
)
_kind(
    "E0303",
    EXIT_INPUT,
    "nothing to train",
    "No parameter is selected by --update, or none of the selected ones leads to the loss: a step would change "
    "nothing. Layers in a branch that the loss does not read cannot learn, nor can weights that the exporter has "
    "folded into constants. Choose --update head or all to see what can be trained; --trainable makes a parameter "
    "of a constant.",
)
_kind(
    "E0304",
    EXIT_INPUT,
    "loss and output do not match",
    "The loss cannot be put on this output. cross-entropy wants scores of shape (batch, classes); mse and bce take "
    "any shape, with targets of the same one. All want an output of float32: leave an ArgMax, a Cast or a threshold "
    "at the end of the model out of the export. A model that ends in its own loss has a scalar output, and labels as "
    "an input if the loss reads any; --model-output names another output to train on.",
)
_kind(
    "E0305",
    EXIT_INPUT,
    "bad labels",
    "Labels must match the loss, and be read by it alone: for cross-entropy one class index from 0 to classes - 1 "
    "per sample (or per pixel); for mse and bce values of the output's shape. The message names the array and the "
    "first value that does not fit. Classes that count from 1, and one-hot rows where an index is wanted, are the "
    "usual causes.",
)
_kind(
    "E0306",
    EXIT_INPUT,
    "no calibration data",
    "--quant int8 stores every activation as int8, and for that it needs the range of each one. A model with "
    "QuantizeLinear and DequantizeLinear nodes (QDQ) brings them along; for a float model --calib FILE.npz measures "
    "them on inputs `x`. Take some hundred samples as the device will see them; with labels `y` the exponents of "
    "the errors in training are measured too (docs/int8.md).",
)
_kind(
    "E0307",
    EXIT_INPUT,
    "out of the range of int8 training",
    "An activation or a weight has a range so large or so small (an int8 step beyond 2^-64 to 2^64), or the "
    "calibration samples lead to numbers so large, that integer arithmetic cannot go from it to the others. Usually "
    "one sample is far off; --calib-range percentile helps against values that are only a little larger than the rest.",
)
_kind(
    "E0308",
    EXIT_INPUT,
    "bad table of gains",
    "--gains takes a CSV file with the header layer,part,axis,channel,gain (docs/update-schemes.md). The message names "
    "the line: one that is not of this form, that says again what an earlier one has said, or a part or channel that "
    "the layer does not have.",
)
_kind(
    "E0309",
    EXIT_INPUT,
    "nothing was learned",
    "finetune tried all its rates. None of them made the samples that it holds back, or the test samples, better known "
    "than before training. So there is nothing to recommend, and no file is written. The table below the message shows "
    "every rate. Look at the samples first: inputs must have the units and the scale of the training (raw counts and "
    "bytes often have not), labels must belong to their inputs, and there must be several classes, counted from 0. If "
    "every rate ends in NaN or infinity, inputs or --lr are too large: the search covers 1/32 to 32 times --lr, and "
    "some rates beyond. If accuracy was high before training, the network knows these samples already. If none of this "
    "explains it, train more layers (--update all) or longer (--epochs).",
)
# E04xx: memory
_kind(
    "E0401",
    EXIT_DOES_NOT_FIT,
    "does not fit",
    "The arena that training needs is larger than --arena, or than what the board has for it. Nothing was written. "
    "The block below the error shows by how much, whether a lower bound proves that nothing can fit, what lies in "
    "the arena at the peak, what was tried, and the options that would make it fit, each with the bytes that the "
    "planner found for it. A figure is that of the plan which these options lead to: whoever follows it gets these "
    "bytes. docs/fitting.md explains the ways and what each costs.",
)
_kind(
    "E0402",
    EXIT_DOES_NOT_FIT,
    "step takes too long",
    "No plan was found whose modelled step time, with second runs and page moves, is within --max-step-time. The "
    "figures are a model from the target file (its core and its memories), no measurement.",
)
_kind(
    "E0403",
    EXIT_DOES_NOT_FIT,
    "does not fit into flash",
    "Code and constant tables need more than --flash-budget, or more than the board's flash has for models. Most of "
    "it are usually the model's weights, which int8 (--quant int8) makes four times smaller. The code is smallest "
    "with --code size, which --flash-budget chooses for as many kernels as needed, and with fewer trained layers. "
    "On a board the reserve of the flash is kept for your application: a board file of your own may keep less "
    "(docs/on-your-board.md).",
)
_kind(
    "E0404",
    EXIT_DOES_NOT_FIT,
    "does not fit the stack",
    "The deepest call needs more stack than the board's file gives (stack_bytes), so it would overwrite the memory "
    "below. The bound covers the built code, without interrupts and your own functions; the message names the calls. "
    "Use a board file of your own with more stack (docs/on-your-board.md); if the arena is in the same memory, it gets "
    "that much smaller. Kernels of your own (--kernels) may be the deep ones.",
)
_kind(
    "E0405",
    EXIT_DOES_NOT_FIT,
    "does not fit the board's RAM",
    "The arena, the buffers of --runtime (kept samples, the best state, the store, messages), the stack and the "
    "reserve together need more RAM than the board has, or no single memory of it has room for one of them. A "
    "firmware of this build would not link. Nothing was written. The block below the error lists what takes how "
    "much, and the options that would make it fit, each with its bytes: fewer kept samples, a state that is kept in "
    "flash, a smaller arena, a smaller reserve, another board. See docs/on-your-board.md.",
)
# E05xx: unsupported
_kind(
    "E0501",
    EXIT_UNSUPPORTED,
    "unsupported operators",
    "The model uses operators, or attributes of operators, that the compiler does not know. All of them are listed, "
    "each with its node, the reason and the nearest form that is supported; --list-ops prints what is. Frozen "
    "layers need the forward operator too, so freezing does not help here. Often another way to write the layer, or "
    "an export for another opset, gives operators that are known.",
)
_kind(
    "E0502",
    EXIT_UNSUPPORTED,
    "no gradient",
    "An operator between a trained layer and the loss has no gradient, so that the layer cannot learn through it: a "
    "rounding, a comparison, an ArgMax, or a form of an operator whose gradient is not implemented. Everything "
    "behind the operator can still be trained. Freeze the layers in front of it (--update with the names of layers "
    "behind it, or head), or write that part of the model with operators that have a gradient (docs/ops.md lists "
    "them).",
)
_kind(
    "E0503",
    EXIT_UNSUPPORTED,
    "operators of a foreign domain",
    "Nodes of domains other than the standard one (for instance com.microsoft, or custom operators) have no meaning "
    "that the compiler knows. They often come from a graph optimiser, which fuses standard operators into its own: "
    "use the model as it was before that. If an operator is your own, write out with standard ones what it computes.",
)
_kind(
    "E0504",
    EXIT_UNSUPPORTED,
    "one weight would be several parameters",
    "A weight of the file is used in several ways that are not one arrangement of its elements each, for instance "
    "as a whole and quantised in two ways. It would become several parameters, each with a part of the gradient, "
    "and they would drift apart. Use the weight in one way, export one weight for each use, or freeze it.",
)
# E06xx: verification
_kind(
    "E0601",
    EXIT_VERIFY,
    "verification failed",
    "The generated C and the numpy reference, or the C on this machine and in QEMU, do not give the same numbers on "
    "the same steps. This is a fault of the compiler (or of the C compiler that was used), not of your model. "
    "Nothing was written. Please report it with the model and the whole command. Another --update, --code size or "
    "--quant fp32 often avoids the kernel that is to blame; --verify none writes the project anyway, which is then "
    "unchecked.",
)
_kind(
    "E0602",
    EXIT_VERIFY,
    "the firmware did not run",
    "Verification compiles the project and runs it on this machine and, for a core that QEMU has, in QEMU. Here a "
    "build failed, the emulator did not start, ended early or ran too long, or there is no C compiler. The message "
    "has the first line of what the tool said. Check that gcc, arm-none-eabi-gcc and qemu-system-arm run by "
    "themselves and that the disk has room (TMPDIR). A program that takes far "
    "longer than its work explains is ended (docs/verification.md has the limits). A tool that ends without an error "
    "and without its file is named, too: the installation is damaged, or a wrapper of the same name comes before it "
    "on PATH. --verify host leaves QEMU out, --verify none all of it.",
)
_kind(
    "E0603",
    EXIT_VERIFY,
    "NaN loss",
    "The loss, or a weight, became NaN or infinite in a step. Usually the learning rate is too large for these "
    "samples: lower --lr by a factor of ten, or add --clip-norm 1. Look at the data as well: inputs far from what "
    "the model was trained on (raw sensor counts where it expects numbers around 1), or labels of another scale, do "
    "the same. finetune searches for a rate that works.",
)
_kind(
    "E0604",
    EXIT_VERIFY,
    "verification with external kernels failed",
    "The generated C calls functions of --kernels, and does not compile, breaks a rule of generated code (a symbol, "
    "the stack, static RAM), or does not compute what the reference computes. The message has the first difference. "
    "Without --kernels the same compilation shows whether these functions are to blame.",
)
_kind(
    "E0605",
    EXIT_VERIFY,
    "the file and the imported graph differ",
    "onnx.reference, run on the model file, and the numpy reference of what was read from it give different "
    "numbers. The tensor named is the first of the file that differs: this compiler has misread a node at or before "
    "it (or, rarely, onnx.reference computes it wrongly). Please report it with the model. Until then, write that "
    "node in another way, for instance by exporting for another opset.",
)
_kind(
    "E0606",
    EXIT_VERIFY,
    "bad export",
    "export has written what a device has learned into a copy of the model, ran that copy with onnx.reference, and "
    "the result is not what the device's C computes. The copy was discarded. If the checkpoint is of this project "
    "and of this model file, it is a fault of the compiler: please report it with both. The checkpoint itself stays "
    "valid on the device.",
)
_kind(
    "E0607",
    EXIT_VERIFY,
    "the training step is not the derivative of the file",
    "The change that one training step makes was compared with central differences of the loss of the model file, "
    "which onnx.reference evaluates in float64. The tensor named would not be trained by its gradient: a loss, a "
    "gradient or an update of this compiler is wrong (or, rarely, onnx.reference computes an operator wrongly). "
    "Please report it with the model. Until then, leave that layer out with --update, or write it in another way.",
)
# E09xx: internal
_kind(
    "E0901",
    EXIT_INTERNAL,
    "internal error",
    "The compiler has ended in an error that it does not know: a bug, whatever the input is. Nothing was written. "
    "Please report it with the model and the whole command; -v prints where in the compiler it happened. Leaving "
    "out options one by one often shows which part is to blame, and so a way around it.",
)
