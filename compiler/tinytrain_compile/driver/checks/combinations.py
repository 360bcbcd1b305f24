"""Options that cannot be honoured together, or with this model, target or machine: an error for each, never silence.

docs/options.md says which options without an effect are harmless.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tinytrain_compile.data.samples import labelled, load_inputs
from tinytrain_compile.driver.checks.model_options import check_int8_flags, has_formats
from tinytrain_compile.errors import CompileError
from tinytrain_compile.ir.imported import ImportedModel
from tinytrain_compile.ir.runtime_parts import OF_WEIGHTS
from tinytrain_compile.ops.update import OPTIMIZER_OPTIONS, OPTIMIZERS, optimizers_with
from tinytrain_compile.options.compile_options import OPTIONS, CompileOptions
from tinytrain_compile.target import Target
from tinytrain_compile.training import end_of


def _chooses_layers(o: CompileOptions) -> bool:
    """Whether low-rank copies are asked for of layers that are still to be chosen."""
    bounded = o.arena_bytes is not None or o.max_step_ps is not None or o.pareto
    return o.activations != "exact" and o.update == "auto" and bounded


_RULES: tuple[tuple[str, Callable[[CompileOptions], bool], str, str], ...] = (
    ("dampening", lambda o: o.nesterov, "has no meaning with --nesterov", "choose one"),
    ("clip_per", lambda o: o.clip_norm is None, "is about --clip-norm", "add that"),
    (
        "rank_error",
        lambda o: o.activations == "exact" and ".toml" not in o.update,
        "is about --activations",
        "add that",
    ),
    ("activations", _chooses_layers, "is not weighed by --update auto", "name an --update"),
    ("accumulate", lambda o: o.batch == 1, "is about several samples", "add --batch N"),
    ("optimise", lambda o: o.lock is not None, "has nothing to choose under --lock", "leave out --lock"),
    ("remat", lambda o: o.lock is not None, "has nothing to choose under --lock", "leave out --lock"),
    ("stream", lambda o: o.lock is not None, "has nothing to choose under --lock", "leave out --lock"),
    ("gains", lambda o: o.update != "auto", "are for --update auto", "use that"),
    ("gains", lambda o: o.lock is not None, "have nothing to choose under --lock", "leave out --lock"),
    ("pareto", lambda o: o.update != "auto", "is about --update auto", "use that"),
    ("pareto", lambda o: o.lock is not None, "has nothing to choose under --lock", "leave out --lock"),
    ("input_type", lambda o: not o.input_lines, "is about the rows of --input-lines", "add that"),
)
"""Option that is given, when it has no meaning, why, and what to do."""


def check_options(options: CompileOptions) -> None:
    """E0101 for options that leave another one that the command line gives nothing to do."""
    check_int8_flags(options.quant, options.int8_flags)
    for name in sorted(options.given & OPTIMIZER_OPTIONS - {*OPTIMIZERS[options.optimizer].takes}):
        flag = OPTIONS[name].flag
        what = f"is for --optimizer {optimizers_with(name)}"
        raise CompileError("E0101", flag, what, f"choose one of these, or leave {flag} out")
    for name, useless, what, way in _RULES:
        if name in options.given and useless(options):
            flag = OPTIONS[name].flag
            raise CompileError("E0101", flag, what, f"{way}, or leave {flag} out")
    _check_counting(options)
    _check_lines(options)
    _check_features(options)
    _check_inference_only(options)
    _check_plans(options)


def _alone(flag: str, others: Sequence[tuple[str, bool]], why: str = "is ") -> None:
    """E0101 for a flag beside any of the others: (option, with its value where that matters; whether it is given)."""
    for option, given in others:
        if given:
            name, _, value = option.partition(" ")
            what = f"{why}not possible with {OPTIONS[name].flag} {value}"
            raise CompileError("E0101", flag, what.rstrip(), "leave one of the two out")


def _check_features(options: CompileOptions) -> None:
    """E0101 for --features on with what a step on features cannot be."""
    others = (("memories", bool(options.memories)), ("input_lines", options.input_lines))
    if options.features == "on":
        _alone("--features on", others)


def _check_inference_only(options: CompileOptions) -> None:
    """E0101 for --inference-only with what is of training alone, or leaves open what is trained."""
    if not options.inference_only:
        return
    others = (
        ("lock", options.lock is not None),
        ("features", options.features == "on"),
        ("slices", options.slices == "on"),
        ("runtime", bool(options.runtime.names)),
        ("pareto", options.pareto),
        ("max_step_ps", options.max_step_ps is not None),
        ("count", options.count),
        ("cycles", options.cycles),
    )
    _alone("--inference-only", others, "is of training, and ")
    if options.update == "auto":
        what = "has to know what the build that trains updates, and with --update auto that follows from its arena"
        way = "name it: --update last:N, or the update.toml in the folder of that build"
        raise CompileError("E0101", "--inference-only", what, way)


def _check_plans(options: CompileOptions) -> None:
    """E0101 for --plans with what is of one plan, or would give plans another state."""
    if not options.plans:
        return
    others = (
        ("arena_bytes", options.arena_bytes is not None),
        ("lock", options.lock is not None),
        ("memories", bool(options.memories)),
        ("input_lines", options.input_lines),
        ("features", options.features == "on"),
        ("flash_budget_bytes", options.flash_budget_bytes is not None),
        ("optimise", options.optimise is not None),
        ("max_step_ps", options.max_step_ps is not None),
        ("inference_only", options.inference_only),
        ("count", options.count),
        ("cycles", options.cycles),
        *((f"runtime {name}", name in options.runtime.names) for name in OF_WEIGHTS),
    )
    _alone("--plans", others)
    if options.update == "auto":
        what = "plans share what is trained, and --update auto would follow from the arena"
        raise CompileError("E0101", "--plans", what, "name it: --update last:N, or a scheme")


def takes_no_memory(options: CompileOptions) -> bool:
    """Whether --memory is refused beside what is asked for: so neither a board gives one nor a message names it."""
    return options.features == "on" or bool(options.plans)


def _check_memories(options: CompileOptions) -> None:
    if options.memories and options.arena_bytes is None and options.optimise != "memory" and options.lock is None:
        what = "without --arena nothing has to lie in another memory"
        way = "add --arena SIZE, the size of the first memory, or --optimise memory"
        raise CompileError("E0101", "--memory", what, way)


def _check_lines(options: CompileOptions) -> None:
    """E0101 for --input-lines with what takes the image as a whole."""
    if not options.input_lines:
        return
    others = (
        ("stream off", options.stream == "off" and "stream" in options.given),
        ("micro_batch", "micro_batch" in options.given),
        ("cycles", options.cycles),
        ("slices", options.slices == "on"),
    )
    _alone("--input-lines", others)


def _check_counting(options: CompileOptions) -> None:
    """E0101 for --count or --cycles without QEMU."""
    counting = options.count or options.cycles
    if counting and (options.verify != "qemu" or options.verify_steps < 2):
        what = f"needs QEMU and two steps, got --verify {options.verify} --verify-steps {options.verify_steps}"
        raise CompileError("E0101", "--count" if options.count else "--cycles", what, "leave these options out")


def check_machine(options: CompileOptions, target: Target) -> None:
    """E0101 for what this target or this machine cannot do, before anything takes time; a dry run says it too."""
    _check_memories(options)
    wants = (("cycles", options.cycles), ("count", options.count))
    asked = [OPTIONS[name].flag for name, wanted in wants if wanted]
    wanted = "verify" in options.given and options.verify != "none"
    if asked or wanted or options.flash_budget_bytes is not None:
        from tinytrain_compile.verify import find_tools

        tools = find_tools(target)
        host = "" if tools.host_cc is not None else "no C compiler found (apt-get install gcc)"
        board = tools.missing_for_qemu() if target.qemu is not None else f"{target.name} has no board in QEMU"
        if asked:
            _refuse(asked[0], board or host or (_no_cycles(target) if options.cycles else ""))
        if wanted:
            _refuse("--verify", board if options.verify == "qemu" else host, options.verify)
        if options.flash_budget_bytes is not None:
            _check_budget(target, tools.cross_cc is None)


def _refuse(flag: str, missing: str, value: str = "") -> None:
    if missing:
        raise CompileError("E0101", f"{flag} {value}".rstrip(), missing, f"leave {flag} out, or change that")


def _no_cycles(target: Target) -> str:
    from tinytrain_compile.verify.cycles import missing_for_cycles

    return missing_for_cycles(target)


def _check_budget(target: Target, missing: bool) -> None:
    if target.toolchain is None:
        what = f"{target.name} is compiled by this machine's compiler; only code for a device is measured"
        raise CompileError("E0101", "--flash-budget", what, "give a device's core as --target, or leave it out")
    if missing:
        what = f"the code of {target.name} cannot be measured here (no cross compiler)"
        way = f"install {target.toolchain.compiler.packages}, or leave the option out"
        raise CompileError("E0101", "--flash-budget", what, way)


def _check_dropout(options: CompileOptions, model: ImportedModel) -> None:
    if options.quant == "int8":
        what = "an int8 activation has no room for numbers that are scaled by 1 / (1 - ratio)"
        raise CompileError("E0101", "--dropout on", what, "leave --dropout out, or use --quant fp32")
    if not any(node.op == "Dropout" for node in model.graph.nodes):
        what = "the file has no Dropout in training mode"
        raise CompileError("E0101", "--dropout on", what, "export it in training mode, or leave --dropout out")


def check_model(options: CompileOptions, model: ImportedModel) -> None:
    """E0101 for options that this model leaves nothing to do, or cannot be honoured with it."""
    if options.dropout == "on":
        _check_dropout(options, model)
    if options.quant == "int8":
        _check_penalty(model)
    if model.more:
        _check_inputs(options, model)
    if not has_formats(model):
        return
    if "calib_range" in options.given:
        what = "says how ranges are measured, and this model brings its own (QDQ)"
        raise CompileError("E0101", "--calib-range", what, "leave it out")
    if options.calib is not None and load_inputs(options.calib, model).size and not labelled(options.calib, model):
        what = (
            f"the model brings its ranges (QDQ), and {options.calib.name} has no labels y for the exponents of errors"
        )
        raise CompileError("E0101", "--calib", what, "add y, or leave --calib out")


def _check_inputs(options: CompileOptions, model: ImportedModel) -> None:
    """E0101 for options that are about the one input of a model, if it has several."""
    asked = {
        "--input-lines": bool(options.input_lines),
        "--features on": options.features == "on",
        "--plans": bool(options.plans),
        "--runtime replay": "replay" in options.runtime.names,
        "--micro-batch": options.micro_batch not in (None, "auto", 1),
    }
    for option, given in asked.items():
        if given:
            names = ", ".join(one.name for one in model.data)
            what = f"it is for models of one data input, and this one has {len(model.data)}: {names}"
            raise CompileError("E0101", option, what, "leave it out")


def check_loss(options: CompileOptions, model: ImportedModel) -> None:
    """E0304 if nothing says whether a model repeats its input or tells classes apart."""
    known = options.loss is not None or model.loss is not None or model.output_shape != model.input_shape
    if known or end_of(model.graph, model.graph.outputs[0]).op in ("Softmax", "LogSoftmax"):
        return
    what = f"the output has the shape of the input, {model.input_shape}: an autoencoder, or a classifier?"
    raise CompileError(
        "E0304", "--loss", what, "choose --loss mse (values), bce (yes or no) or cross-entropy (classes)"
    )


def _check_penalty(model: ImportedModel) -> None:
    """E0101 for a loss that reads weights itself, which int8 has in other units."""
    written = None if model.loss is None else model.loss.written
    if written is None:
        return
    weights = {value.name for value in model.graph.parameters}
    read = next((v.name for node in written.nodes for v in node.inputs if v.name in weights), None)
    if read is not None:
        what = f"the loss reads the weight {read} itself (a penalty), which int8 has no form of"
        raise CompileError("E0101", "--quant int8", what, "leave the penalty out, or use --quant fp32")


def option_notes(options: CompileOptions) -> tuple[str, ...]:
    """Return notes on options that do not do what anybody wants."""
    if options.learning_rate == 0:
        return ("--lr 0: nothing is learned until m_set_lr gives another learning rate",)
    return ()
