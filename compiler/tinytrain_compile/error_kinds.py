"""Every error id: its exit code (docs/errors.md is made of this) and the text that --explain prints."""

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


# E01xx: usage and files
_kind("E0101", EXIT_INPUT, "bad option value", "An option's value is not of the form that --help shows.")
_kind("E0102", EXIT_INPUT, "unknown target", "Use a name from --list-targets or the path of a target TOML file.")
_kind("E0103", EXIT_INPUT, "bad target file", "A target file is TOML with known keys only; the message names the key.")
_kind(
    "E0104",
    EXIT_INPUT,
    "cannot write the output",
    "The folder of -o cannot be written, or holds a file that this compiler did not write there, or that was changed "
    "since, of a name that it is about to write. manifest.json in the folder lists the files that are its own. --force "
    "overwrites the others of these names; files of any other name always stay. The folder is as it was.",
)
_kind("E0105", EXIT_INPUT, "bad data file", "--data is an .npz with arrays `x` (ONNX layout, samples first) and `y`.")
_kind(
    "E0106",
    EXIT_INPUT,
    "lock does not match",
    "--lock takes the plan.json of an earlier output and uses its order and addresses. They are checked against the "
    "model and the options of this run; the message says what does not agree.",
)
_kind("E0107", EXIT_INPUT, "no such memory", "--memory and --arena (of a board) take no more than the target has.")
_kind(
    "E0108",
    EXIT_INPUT,
    "bad kernel file",
    "--kernels takes a TOML file of [[kernel]] entries (docs/external-kernels.md). The message names the entry and the "
    "key, or the layer for which a formula has no sensible value, or the C file that cannot be used.",
)
_kind(
    "E0109",
    EXIT_INPUT,
    "bad file of tiles",
    "The file of --tiles, and tiles.txt in an output folder, are written by --tune. This one cannot be read, or a line "
    "of it is damaged. Delete the file, or make it anew with --tune.",
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
_kind("E0112", EXIT_INPUT, "no place in the file", "The file has no number that could say what a device has learned.")
# E02xx: the model file
_kind(
    "E0201",
    EXIT_INPUT,
    "cannot read the model",
    "The model file is missing, is a folder, or may not be read. Nothing was parsed. Check the path and its "
    "permissions.",
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
    "A dimension of an input, a weight or an intermediate result is negative: a shape was computed wrongly at export, "
    "or the file was edited.",
)
_kind(
    "E0205",
    EXIT_INPUT,
    "a weight is NaN",
    "A weight holds NaN, which training would spread to every other weight within a step. Load the last good "
    "checkpoint and export again.",
)
_kind(
    "E0206",
    EXIT_INPUT,
    "names clash",
    "Two inputs, weights, nodes or results of the model have the same name. Names must be unique because update "
    "schemes, reports and errors refer to them.",
)
_kind(
    "E0207",
    EXIT_INPUT,
    "the graph has a cycle",
    "Some nodes need each other's results, so that no order of execution exists. Recurrent networks must be "
    "exported unrolled, with one node per time step.",
)
_kind(
    "E0208",
    EXIT_INPUT,
    "opset too old",
    "Opset 13 and later of the default domain is read as it stands, 7 to 12 through onnx's version converter. What "
    "that cannot convert has to be exported again, with a newer opset.",
)
_kind(
    "E0209",
    EXIT_INPUT,
    "several data inputs",
    "A model has one data input, and a second one only for the labels of the loss that it ends in (a scalar output; "
    "--label says which input it is where the model does not tell). Make further inputs constants, or join the inputs "
    "into one tensor and split it inside the model.",
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
    "The file does not hold an ONNX protobuf. Files of other frameworks (.pt, .h5, .tflite), ONNX text and "
    "git-lfs pointers must be converted or fetched first.",
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
    "A weight's data is shorter or longer than its dimensions say. The file was edited or damaged.",
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
    "Training needs one output to put the loss on. --model-output NAME says which; what only the "
    "others need is left out.",
)
_kind(
    "E0219",
    EXIT_INPUT,
    "no data input",
    "Every input of the model is a constant or a label: there is nothing that a sample could be fed to.",
)
_kind(
    "E0220",
    EXIT_INPUT,
    "external data missing or too short",
    "The model keeps weights in a file beside it, and that file is missing or ends before the weight does. Copy "
    "all files of the model together.",
)
_kind(
    "E0221",
    EXIT_INPUT,
    "input type",
    "The data input must be float32, or int32 or int64 where its numbers are only looked up in tables (embeddings), or "
    "integers of any type that are only moved before a Cast to float32 reads them (pixels of a byte).",
)
_kind(
    "E0222",
    EXIT_INPUT,
    "no such label input",
    "--label names an input that the model does not have, or that is not what its loss reads as labels.",
)
_kind(
    "E0223",
    EXIT_INPUT,
    "a feature of ONNX that is not read",
    "Models with sparse weights or model-local functions are not read. Export plain inference graphs; functions can be "
    "inlined with onnx.inliner.",
)
_kind(
    "E0224",
    EXIT_INPUT,
    "--input-shape does not fit",
    "--input-shape names an input that the model does not have, or contradicts its rank or one of its fixed "
    "dimensions.",
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
    "An input, an output or a weight of the model has an empty name, so nothing can refer to it. Export the model "
    "again.",
)
_kind(
    "E0228",
    EXIT_INPUT,
    "wrong number of inputs or outputs",
    "A node has more or fewer inputs or outputs than the ONNX standard gives its operator, or leaves a required one "
    "empty. The message names the node and the numbers.",
)
_kind(
    "E0229",
    EXIT_INPUT,
    "bad attribute",
    "An attribute of a node is missing, unknown to its operator, given twice, or of the wrong type. The message names "
    "the node and the attribute.",
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
    "The file says how it is trained (TrainingInfoProto, or the training artifacts of ONNX Runtime), in a way that has "
    "no form here: other optimizers, weights with rules of their own, gradients that are changed before the update, "
    "missing weights. docs/adr/0026-training-graphs.md says what is read. Give the forward model and say the rest by "
    "options.",
)
# E03xx: training set-up
_kind("E0301", EXIT_INPUT, "no such layer", "An --update pattern matches no parametrised node; see the nearest names.")
_kind("E0302", EXIT_INPUT, "bad update scheme", "The scheme file's format is described in docs/update-schemes.md.")
_kind("E0303", EXIT_INPUT, "nothing to train", "No parameter is selected, or none leads to the loss.")
_kind(
    "E0304",
    EXIT_INPUT,
    "loss and output do not match",
    "cross-entropy wants (batch, classes); mse and bce any shape. All want an output of float32.",
)
_kind("E0305", EXIT_INPUT, "bad labels", "Labels must match the loss: class indices, or values of the output's shape.")
_kind(
    "E0306",
    EXIT_INPUT,
    "no calibration data",
    "--quant int8 needs the range of every activation: a QDQ model has them, --calib FILE.npz measures them on x.",
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
# E04xx: memory
_kind("E0401", EXIT_DOES_NOT_FIT, "does not fit", "The arena is too small; the block shows why and what would fit.")
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
    "Code and constant tables need more than --flash-budget, or the board's flash. Most of it are the model's weights; "
    "the code is smallest with --code size (--flash-budget chooses it where needed), and with fewer trained layers.",
)
_kind(
    "E0404",
    EXIT_DOES_NOT_FIT,
    "does not fit the stack",
    "The deepest call of the built code needs more than the target keeps for the stack. A board file of your own may "
    "keep more (docs/on-your-board.md), which is taken from the arena where both are in one memory.",
)
# E05xx: unsupported
_kind(
    "E0501",
    EXIT_UNSUPPORTED,
    "unsupported operators",
    "The model uses operators, or attributes of operators, that the compiler does not know. All of them are "
    "listed, with node, reason and the nearest form that is supported; --list-ops prints what is. Frozen layers need "
    "the forward operator too, so freezing does not help here.",
)
_kind("E0502", EXIT_UNSUPPORTED, "no gradient", "An operator between a trained layer and the loss has no gradient.")
_kind(
    "E0503",
    EXIT_UNSUPPORTED,
    "operators of a foreign domain",
    "Nodes of domains other than the standard one (com.microsoft, custom operators) have no meaning known here. "
    "They often come from a graph optimiser: use the model as it was before that.",
)
_kind(
    "E0504",
    EXIT_UNSUPPORTED,
    "one weight would be several parameters",
    "A weight is used in ways that are not one arrangement of its elements each, as a whole and quantised in two ways. "
    "It would become several parameters that drift apart. Use it in one way, or export one weight for each use.",
)
# E06xx: verification
_kind("E0601", EXIT_VERIFY, "verification failed", "The generated C and the reference disagree; please report this.")
_kind("E0602", EXIT_VERIFY, "the firmware did not run", "A build or the emulator failed, or there is no C compiler.")
_kind("E0603", EXIT_VERIFY, "NaN loss", "The loss became NaN or infinite: lower --lr, or look at the data.")
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
    "onnx.reference, run on the model file, and the numpy reference of what was read from it give different numbers. "
    "The tensor named is the first that differs: a node at or before it was misread, or (rarely) onnx.reference is. "
    "Please report it with the model; until then write that node in another way, as by exporting for another opset.",
)
_kind("E0606", EXIT_VERIFY, "bad export", "The file that would be written is not what was learned; please report this.")
# E09xx: internal
_kind("E0901", EXIT_INTERNAL, "internal error", "A bug in the compiler; please report it with the model.")
