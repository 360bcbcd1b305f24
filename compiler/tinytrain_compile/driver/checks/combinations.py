"""Options that cannot be honoured together, or with this model, target or machine: an error for each, never silence.

docs/options.md says which options without an effect are harmless.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tinytrain_compile.data.samples import labelled, load_inputs
from tinytrain_compile.driver.checks.model_options import check_int8_flags, has_formats
from tinytrain_compile.errors import CompileError
from tinytrain_compile.ir.imported import ImportedModel
from tinytrain_compile.ops.base import has_trait
from tinytrain_compile.ops.update import OPTIMIZER_OPTIONS, OPTIMIZERS, optimizers_with
from tinytrain_compile.options.compile_options import OPTIONS, CompileOptions, is_asked_for, refuse_auto
from tinytrain_compile.parts.registry import asked_parts
from tinytrain_compile.target.model import Target
from tinytrain_compile.training import end_of

UNDER_LOCK = "optimise remat stream gains pareto"
"""Options that choose what a lock has chosen."""
NEEDS: Mapping[str, tuple[str, Callable[[CompileOptions], object]]] = {
    "clip_per": ("--clip-norm", lambda o: o.clip_norm),
    "rank_error": ("--activations", lambda o: o.activations != "exact" or ".toml" in o.update),
    "gains": ("--update auto", lambda o: o.update == "auto"),
    "pareto": ("--update auto", lambda o: o.update == "auto"),
    "input_type": ("--input-lines", lambda o: o.input_lines),
}
"""Option -> what it is about, and whether that is asked for."""


def check_options(options: CompileOptions) -> None:
    """Raise E0113 for options that leave another one nothing to do, or are not possible together."""
    check_int8_flags(options.quant, options.int8_flags)
    for name in sorted(options.given & OPTIMIZER_OPTIONS - {*OPTIMIZERS[options.optimizer].takes}):
        _refuse_alone(name, f"is for --optimizer {optimizers_with(name)}", "choose one of these")
    for name in UNDER_LOCK.split():
        if options.lock is not None and is_asked_for(options, name):
            _refuse_alone(name, "has nothing to choose under --lock", "leave out --lock")
    for name, (needed, is_there) in NEEDS.items():
        if is_asked_for(options, name) and not is_there(options):
            _refuse_alone(name, f"is about {needed}", "add that")
    _check_counting(options)
    if options.nesterov and is_asked_for(options, "dampening"):
        raise CompileError("E0113", "--nesterov", "is not possible with --dampening", "leave one of the two out")
    for part in asked_parts(options):
        part.check_options(options)
    if options.update == "auto" and is_asked_for(options, "activations") and _is_bounded(options):
        refuse_auto("--activations", "is not weighed by --update auto")


def _is_bounded(o: CompileOptions) -> bool:
    """Tell whether --update auto has something to choose: else all is trained."""
    return o.arena_bytes is not None or o.max_step_ps is not None or o.pareto


def _refuse_alone(name: str, what: str, way: str) -> None:
    flag = OPTIONS[name].flag
    raise CompileError("E0113", flag, what, f"{way}, or leave {flag} out")


def takes_no_memory(options: CompileOptions) -> bool:
    """Tell whether --memory is refused beside what is asked for: no board gives one then, no message names it."""
    return any("memories" in part.not_with for part in asked_parts(options))


def _check_memories(options: CompileOptions) -> None:
    if options.memories and options.arena_bytes is None and options.optimise != "memory" and options.lock is None:
        what = "without --arena nothing has to lie in another memory"
        way = "add --arena SIZE, the size of the first memory, or --optimise memory"
        raise CompileError("E0113", "--memory", what, way)


def _check_counting(options: CompileOptions) -> None:
    """Raise E0113 for --count or --cycles if QEMU is switched off."""
    counting = options.count or options.cycles
    if counting and (options.verify != "qemu" or options.verify_steps < 2):
        what = f"needs QEMU and two steps, got --verify {options.verify} --verify-steps {options.verify_steps}"
        raise CompileError("E0113", "--count" if options.count else "--cycles", what, "leave these options out")


def check_machine(options: CompileOptions, target: Target) -> None:
    """Raise E0113 for what this target cannot do, E0114 for tools that are not installed, before anything takes time.

    A dry run does too.
    """
    _check_memories(options)
    wants = (("cycles", options.cycles), ("count", options.count))
    asked = [OPTIONS[name].flag for name, wanted in wants if wanted]
    wanted = "verify" in options.given and options.verify != "none"
    if asked or wanted or options.flash_budget_bytes is not None:
        from tinytrain_compile.verify.tools import find_tools

        tools = find_tools(target)
        host = "" if tools.host_cc is not None else "no C compiler found (apt-get install gcc)"
        emulated = asked or options.verify == "qemu"
        if (asked or wanted) and emulated and target.qemu is None:
            flag, way = (asked[0], f"leave {asked[0]} out") if asked else ("--verify qemu", "use --verify host")
            raise CompileError("E0113", flag, f"QEMU has no board for {target.name}", way)
        if options.cycles and not target.cycle_model:
            raise CompileError("E0113", "--cycles", f"{target.name} has no cycle model", "leave --cycles out")
        board = tools.missing_for_qemu() if emulated and target.qemu is not None else ""
        if asked:
            _check_installed(asked[0], board or host or (_no_cycles(target) if options.cycles else ""))
        if wanted:
            _check_installed(f"--verify {options.verify}", board if options.verify == "qemu" else host)
        if options.flash_budget_bytes is not None:
            _check_budget(target, tools.cross_cc is None)


def _check_installed(flag: str, missing: str) -> None:
    """Raise E0114 if a tool is missing, which its text names together with the packages that have it."""
    if missing:
        raise CompileError("E0114", flag, missing, f"install it, or leave {flag} out")


def _no_cycles(target: Target) -> str:
    from tinytrain_compile.verify.cycles import missing_for_cycles

    return missing_for_cycles(target)


def _check_budget(target: Target, missing: bool) -> None:
    if target.toolchain is None:
        what = f"{target.name} is compiled by this machine's compiler; only code for a device is measured"
        raise CompileError("E0113", "--flash-budget", what, "give a device's core as --target, or leave it out")
    if missing:
        what = f"the code of {target.name} cannot be measured here (no cross compiler)"
        way = f"install {target.toolchain.compiler.packages}, or leave the option out"
        raise CompileError("E0114", "--flash-budget", what, way)


def _check_dropout(options: CompileOptions, model: ImportedModel) -> None:
    if options.quant == "int8":
        what = "an int8 activation has no room for numbers that are scaled by 1 / (1 - ratio)"
        raise CompileError("E0113", "--dropout on", what, "leave --dropout out, or use --quant fp32")
    if not any(node.op == "Dropout" for node in model.graph.nodes):
        what = "the file has no Dropout in training mode"
        raise CompileError("E0113", "--dropout on", what, "export it in training mode, or leave --dropout out")


def check_model(options: CompileOptions, model: ImportedModel) -> None:
    """Raise E0113 for options that this model leaves nothing to do, or that are not possible with it."""
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
        raise CompileError("E0113", "--calib-range", what, "leave it out")
    if options.calib is not None and load_inputs(options.calib, model).size and not labelled(options.calib, model):
        what = (
            f"the model brings its ranges (QDQ), and {options.calib.name} has no labels y for the exponents of errors"
        )
        raise CompileError("E0113", "--calib", what, "add y, or leave --calib out")


def _check_inputs(options: CompileOptions, model: ImportedModel) -> None:
    """Raise E0113 for options that are about the one input of a model, if it has several."""
    asked = [part.flag for part in asked_parts(options) if part.one_input]
    asked += [] if options.micro_batch in (None, "auto", 1) else ["--micro-batch"]
    if asked:
        names = ", ".join(one.name for one in model.data)
        what = f"it is for models of one data input, and this one has {len(model.data)}: {names}"
        raise CompileError("E0113", asked[0], what, "leave it out")


def check_loss(options: CompileOptions, model: ImportedModel) -> None:
    """Raise E0304 if nothing says whether a model repeats its input or tells classes apart."""
    known = options.loss is not None or model.loss is not None or model.output_shape != model.input_shape
    end = end_of(model.graph, model.graph.outputs[0])
    if known or (end.activation is not None and has_trait(end.op, "distribution")):
        return
    what = f"the output has the shape of the input, {model.input_shape}: an autoencoder, or a classifier?"
    raise CompileError(
        "E0304", "--loss", what, "choose --loss mse (values), bce (yes or no) or cross-entropy (classes)"
    )


def _check_penalty(model: ImportedModel) -> None:
    """Raise E0113 for a loss that reads weights itself, which int8 has in other units."""
    written = None if model.loss is None else model.loss.written
    if written is None:
        return
    weights = {value.name for value in model.graph.parameters}
    read = next((v.name for node in written.nodes for v in node.inputs if v.name in weights), None)
    if read is not None:
        what = f"the loss reads the weight {read} itself (a penalty), which int8 has no form of"
        raise CompileError("E0113", "--quant int8", what, "leave the penalty out, or use --quant fp32")


def option_notes(options: CompileOptions, layers: int) -> tuple[str, ...]:
    """Return notes on options that do not do what anybody wants. layers: of the model, with parameters."""
    notes = list[str]()
    if options.learning_rate == 0:
        notes.append("--lr 0: nothing is learned until m_set_lr gives another learning rate")
    last = options.update.removeprefix("last:")
    if options.update.startswith("last:") and last.isdigit() and int(last) > layers:
        notes.append(f"--update {options.update}: the model has {layers} layers with parameters, so it trains all")
    return tuple(notes)
