"""The numpy reference of an int8 step as a step that is judged: which gradient its update shows.

The forward and backward pass of a sample does not depend on the learning rate: it runs once. Only the nodes of the
updates run again, at rates at which a number moves by many steps of its format: what the update rounds vanishes then.
There every integer starts at 0, so that it can move either way: what it moves by does not depend on where it is. Every
number counts by the largest rate that does not drive it to the end of its range.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tinytrain_compile.driver.derivative.copies import ExpandedCopy, exact_layers, expanded_copies
from tinytrain_compile.driver.derivative.judged import JudgedStep, Part
from tinytrain_compile.driver.derivative.optimizers import Step, implied
from tinytrain_compile.driver.derivative.rates import FIRST, LEAST, RUNS, RateSearch, Shown
from tinytrain_compile.ir.imported import ImportedModel
from tinytrain_compile.ir.records import in_calls
from tinytrain_compile.ir.stages import IntegerUnit, TrainGraph
from tinytrain_compile.ir.types import Array, Node, Value
from tinytrain_compile.ops.names import ErrorOperands, error_exponents, error_operands, operand, operands, result
from tinytrain_compile.reference.trainer import Trainer
from tinytrain_compile.training import TrainingOptions

FLOAT_RATE = 12
"""Exponent of the rate of float32 parameters: what float32 rounds off a weight vanishes beside such an update."""
FINER = 8, 3
"""Bits that an error gains, to show what it rounds off: the first for small errors, the second for larger ones."""
LIFT = 3
"""Bits by which the rate of compared updates is above one at which few weights reach the end of their range."""
MOST = 0.7
"""Share of a gradient, squared, that compared updates show."""
VELOCITY, LOWER = 15, 3
"""A velocity whose largest number is below that is stored too coarsely: its exponent is lowered by so many bits."""
LOWEST, HIGHEST = -70, 60
"""Exponents of velocities that are tried."""
CLEAR_VELOCITY = 8
"""Least integer of a velocity that is known to a sixteenth."""
MEAN_ROUNDING = 0.4
"""Root mean square of what noise adds to a rounded weight, in its steps, about."""
LAST = 127
"""Magnitude at which an int8 weight, error or velocity is at the end of its range."""

State = Mapping[str, Array]
Finer = tuple[str, int]
"""An exponent of errors, and how many bits more they have."""


@dataclass(frozen=True, eq=False)
class Pass:
    """Forward and backward passes of an update. values: what update nodes read; calls: all values of each call."""

    values: Mapping[str, Array]
    calls: tuple[Mapping[str, Array], ...]
    losses: tuple[float, ...]
    divisor: int | np.float32


class _Trainer(Trainer):
    """The reference, with an error that has more bits than its peak leaves it, or errors that are rounded otherwise."""

    finer: Finer = ("", 0)
    otherwise: np.random.Generator | None = None
    copies: Mapping[str, ExpandedCopy] = {}

    def run_nodes(self, nodes: Iterable[Node], known: Mapping[str, Array]) -> dict[str, Array]:
        """Run nodes, with exact activations in place of copies that are expanded.

        If errors are rounded by chance, add to each what rounding may do: a variance of 1/12.
        """
        if self.otherwise is None and not self.copies:
            return super().run_nodes(nodes, known)
        values = dict(known)
        for node in nodes:
            values = super().run_nodes((node,), values)
            if (copy := self.copies.get(node.outputs[0].name)) is not None:
                values[copy.copy] = copy.exact(values)
            if self.otherwise is not None and error_operands(node) is not None:
                name = node.outputs[0].name
                off = self.otherwise.choice(3, values[name].shape, p=(1 / 24, 11 / 12, 1 / 24)) - 1
                error = np.clip(values[name].astype(np.int64) + off, -LAST, LAST)
                values[name] = np.where(values[name] == 0, 0, error).astype(values[name].dtype)
        return values

    def _find_exponent(self, node: Node, error: ErrorOperands, values: dict[str, Array]) -> None:
        super()._find_exponent(node, error, values)
        name = error.exponent.name
        finer, bits = self.finer
        if name == finer:
            self.state[name] = values[name] = values[name] - np.asarray([bits, 0], np.int32)


class IntegerStep:
    """One update of the reference, at its first numbers, with exponents that hold the errors of its own samples."""

    def __init__(self, train: TrainGraph, model: ImportedModel, how: TrainingOptions) -> None:
        self._how = how
        self.train = replace(train, dropout=None)
        self.copies = expanded_copies(train)
        self.judged = JudgedStep(train, model, exact_layers(train, self.copies))
        self.parts = self.judged.parts
        self._trainer = _Trainer(self.train)
        self._trainer.copies = {copy.copy: copy for copy in self.copies}
        self._first = dict(self._trainer.state)
        self._exponents = [name for name in error_exponents(train.graph.nodes) if name in self._first]
        errors = ((error_operands(node), node) for node in train.graph.nodes)
        self._errors = {own.exponent.name: node.outputs[0].name for own, node in errors if own is not None}
        sums = (node for node in train.graph.nodes if node.op == "QGradientAdd")
        self._sums = {
            result(node, "exponent").name: (operand(node, "p_a").name, operand(node, "p_b").name) for node in sums
        }
        self._together = train.batch > 1 and not train.in_place
        self._moving = self._rate_nodes()
        self._bases: dict[str, int] = {}
        self._start = self._first | self._zeros()

    def _zeros(self) -> dict[str, Array]:
        """Return the integers of all parts as zeros, with what a store keeps of them besides."""
        units = {part.name: unit for part in self.parts if (unit := self.unit(part)) is not None}
        names = [name for own, unit in units.items() for name in (own, unit.fraction) if name]
        return {name: np.zeros_like(self._first[name]) for name in names}

    @property
    def exponents(self) -> tuple[str, ...]:
        """Return the names of the exponents of errors."""
        return tuple(self._exponents)

    def unit(self, part: Part) -> IntegerUnit | None:
        """Return what the integers of a parameter count; None if it is real."""
        return self.train.trained[part.name].unit

    def change(self) -> dict[str, Array]:
        """Return, by part, how far the numbers that are stored are from the file's own."""
        return {p.name: self.real(p, self._first) - p.source.in_graph(p.source.tensor.initial) for p in self.parts}

    def real(self, part: Part, state: State) -> NDArray[np.float64]:
        """Return a parameter of such a state in real numbers, in float64."""
        numbers = np.asarray(state[part.name], np.float64).reshape(part.shape)
        unit = self.unit(part)
        if unit is None:
            return numbers
        if unit.fraction:
            numbers = numbers + np.asarray(state[unit.fraction], np.float64).reshape(part.shape) / 256
        return numbers * self._doubled(part, state) * self._scale(part, unit)

    def _doubled(self, part: Part, state: State) -> NDArray[np.float64]:
        """Return by channel how much larger the scale is than at first (--rescale)."""
        unit = self.unit(part)
        if unit is None or not unit.shift:
            return np.ones(())
        change = np.asarray(state[unit.shift], np.float64) - np.asarray(self._first[unit.shift], np.float64)
        return 2.0 ** change[list(unit.channels)].reshape(-1, *[1] * (len(part.shape) - 1))

    # ---- passes -----------------------------------------------------------------------------------------------------

    def run(self, x: Array, y: Array, coarser: int = 0, finer: Finer = ("", 0), otherwise: int | None = None) -> Pass:
        """Run forward and backward passes of these samples, as many as calls take.

        coarser: bits that errors have less than they would have. finer: errors that have more, and large ones of which
        are cut off. otherwise: round errors by chance, with this seed.
        """
        self._trainer.finer = finer
        train = self.train
        given = in_calls(x, train.data, train.micro_batch)
        calls = list(zip(given, y.reshape(-1, *train.label.shape), strict=True))
        first = tuple(self._found(*call) for call in calls)
        if otherwise is not None:
            self._trainer.otherwise = np.random.default_rng(otherwise)
        alike = len(calls) == 1 and not coarser and otherwise is None and not self._together
        values = first if alike else self._again(calls, first, coarser)
        self._trainer.otherwise = None
        found = zip(values, calls, strict=True)
        losses = tuple(float(train.terms.of_call(v[train.loss.name], y)) for v, (_, y) in found)
        if not self._together:
            return Pass(values[0], values, losses, self.train.batch)
        held = {**self.train.graph.constants, **self._trainer.state, **self._trainer.sums}
        return Pass(held, values, losses, self._divisor(y, len(x)))

    def _found(self, x: Array, y: Array) -> dict[str, Array]:
        """Return all values of a call, with the exponents that its own errors ask for."""
        self._reset({})
        self._trainer.exponents_known = False
        return self._trainer.values(x, y)

    def _again(
        self, calls: Sequence[tuple[Array, Array]], first: Sequence[State], coarser: int
    ) -> tuple[dict[str, Array], ...]:
        """Make the same calls with exponents that hold the errors of all of them."""
        highest = {name: self._highest(name, first) + coarser for name in self._exponents}
        self._reset({name: np.asarray([p, 0], np.int32) for name, p in highest.items()})
        return tuple(self._trainer.gather(*c) if self._together else self._trainer.values(*c) for c in calls)

    def _highest(self, exponent: str, first: Sequence[State]) -> int:
        """Return the largest exponent that a call asks for; a call without such an error asks for none."""
        error = self._errors.get(exponent, "")
        some = [values for values in first if error in values and np.any(values[error])]
        return max(int(values[exponent][0]) for values in some or first)

    def _reset(self, exponents: State) -> None:
        trainer = self._trainer
        trainer.state, trainer.sums = {**self._first, **exponents}, trainer.zero_sums()
        trainer.exponents_known = True
        trainer.set_rate(1.0)
        trainer.set_scalars(self.train.batch if self.train.in_place else 1)

    def _divisor(self, y: Array, samples: int) -> int | np.float32:
        """Return what the sum of these samples is divided by: how many they are, or what their labels weigh."""
        weights = self.train.terms.weights
        if self.train.weight_sum is None or weights is None:
            return samples
        total = np.float32(0.0)
        for label in y.reshape(-1, *self.train.label.shape):
            total = weights.of(label, float(total))
        return total

    def own_exponents(self, part: Part) -> tuple[str, ...]:
        """Return the exponents of the errors that a parameter's gradient is made of: of all layers that share it."""
        nodes = (operands(node) for node, names in self._moving.items() if part.name in names)
        pending, found = [own["p"].name for own in nodes if "p" in own], dict[str, None]()
        while pending:
            name = pending.pop(0)
            if name in self._sums:
                pending += self._sums[name]
            else:
                found[name] = None
        return tuple(found)

    def uncut(self, found: Pass, exponent: str, channels: int) -> NDArray[np.bool_]:
        """Tell by channel whether no error with this exponent is at an end of its range; nowhere if channels differ."""
        errors = [np.asarray(values[self._errors[exponent]], np.int64) for values in found.calls]
        if any(error.shape[-1] != channels for error in errors):
            return np.zeros(channels, bool)
        return np.all([np.abs(error).reshape(-1, channels).max(axis=0) < LAST for error in errors], axis=0)

    # ---- updates ----------------------------------------------------------------------------------------------------

    def updated(self, found: Pass, exponent: int, parts: Sequence[Part] = (), state: State | None = None) -> State:
        """Return the state after an update at the rate 2**exponent. parts: those that count (none: all)."""
        trainer = self._trainer
        trainer.set_rate(2.0**exponent)
        trainer.set_scalars(found.divisor if self.train.terms.divisor != "one" else 1)
        numbers = self._zeros() if state is None else state
        held = {**found.values, **{name: a for name, a in numbers.items() if name not in self._exponents}}
        for value in (self.train.rate, self.train.inverse_count):
            if value is not None:
                held[value.name] = trainer.sums[value.name]
        held[self.train.learning_rate.name] = trainer.state[self.train.learning_rate.name]
        after = dict(self._start if state is None else state)
        names = {part.name for part in parts}
        for node in self._moving:
            if names and names.isdisjoint(self._moving[node]):
                continue
            for value in node.inputs:
                if value.name not in held:
                    held[value.name] = held[trainer.owner(value.name) or value.name]
            read = [value.name for value in node.inputs]
            read += [copy.source for copy in self.copies if copy.copy == node.outputs[0].name]
            held |= trainer.run_nodes((node,), {name: held[name] for name in read})
            after |= {
                owner: held[value.name]
                for value in node.outputs
                if (owner := trainer.owner(value.name)) is not None and owner in after
            }
        return after

    def _rate_nodes(self) -> dict[Node, frozenset[str]]:
        """Return nodes that depend on the rate or on the history of updates, in order, and the parts that need each."""
        names = {value.name for value in (self.train.learning_rate, self.train.rate) if value is not None}
        graph = self.train.graph
        overwritten = {self._trainer.owner(value.name) for node in graph.nodes for value in node.outputs}
        passes = graph.ancestors((self.train.loss,)) | {n.name for n in graph.nodes if error_operands(n) is not None}
        read = {value.name for node in graph.nodes if node.name in passes for value in node.inputs}
        history = {name for name in overwritten if name is not None and name in self._first} - read
        chosen = self._readers(names | history)
        needed = {part.name: self._behind(chosen, part) for part in self.parts}
        return {node: frozenset(name for name, nodes in needed.items() if node.name in nodes) for node in chosen}

    def _readers(self, names: set[str]) -> list[Node]:
        """Return all nodes that depend on these; of sums that calls share, what applies them."""
        names, chosen = set(names), list[Node]()
        for phase in ("step", "apply"):
            for node in self.train.graph.nodes:
                own = node.phase == phase and not (self._together and phase == "step")
                if own and (self._together or any(value.name in names for value in node.inputs)):
                    names.update(value.name for value in node.outputs)
                    chosen.append(node)
        return chosen

    def _behind(self, nodes: Sequence[Node], part: Part) -> set[str]:
        """Name nodes on which a part's numbers depend after the update, also by the state that they overwrite."""
        unit = self.unit(part)
        owned = {part.name} if unit is None else {part.name, unit.fraction, unit.shift}
        found, wanted = set[str](), set[str]()
        for node in reversed(nodes):
            outputs = {value.name for value in node.outputs}
            if outputs & wanted or any(self._trainer.owner(name) in owned for name in outputs):
                found.add(node.name)
                wanted.update(value.name for value in node.inputs)
        return found

    # ---- gradients --------------------------------------------------------------------------------------------------

    def gradients(self, found: Pass, parts: Sequence[Part]) -> dict[str, Shown]:
        """Return the gradient of each of these parts that updates show."""
        searches = {part.name: RateSearch(FLOAT_RATE if self.unit(part) is None else FIRST) for part in parts}
        left = list(parts)
        for _ in range(RUNS):
            for exponent in sorted({searches[part.name].exponent for part in left}):
                here = [part for part in left if searches[part.name].exponent == exponent]
                after = self.updated(found, exponent, here)
                for part in here:
                    searches[part.name].add(self._shown(part, after, exponent))
            left = [part for part in left if self.unit(part) is not None and searches[part.name].goes_on()]
            if not left:
                break
        self._bases |= {part.name: searches[part.name].base for part in parts}
        return {part.name: searches[part.name].joined() for part in parts}

    def later(self, found: Pass) -> tuple[dict[str, Shown], dict[str, Shown]]:
        """Return what two updates by the same gradient show, both from the first numbers: history alone goes on.

        Velocities have exponents that suit them from the beginning: while these are found (docs/int8.md), a velocity
        may be cut off, or be rounding alone.
        """
        begin = {**self._start, **self._exponents_of_velocities(found)}
        after = {**self.updated(found, LEAST, (), begin), **self._zeros(), **self._gathered(found)}
        one, two = dict[str, Shown](), dict[str, Shown]()
        for part in self.parts:
            exponent, one[part.name] = self._whole(found, part, begin)
            again = self.updated(found, exponent, (part,), after)
            two[part.name] = self._shown(part, again, exponent, after, 1)
            clear = self._clear_velocity(part, after)
            two[part.name] = replace(two[part.name], known=two[part.name].known & clear)
        return one, two

    def _clear_velocity(self, part: Part, state: State) -> NDArray[np.bool_]:
        """Tell where a velocity in integers is not mostly rounding. Its name: the parameter's and `.velocity`."""
        for own in self._velocities():
            if own["velocity"].name == f"{part.name}.velocity":
                return np.abs(np.asarray(state[own["velocity"].name], np.int64)).reshape(part.shape) >= CLEAR_VELOCITY
        return np.ones(part.shape, bool)

    def _whole(self, found: Pass, part: Part, state: State) -> tuple[int, Shown]:
        """Return a rate, and what it shows: as large as most of the gradient allows (few numbers may be most of it)."""
        exponent = self._bases[part.name] + LIFT * (np.asarray(self._first[part.name]).dtype == np.int8)
        while True:
            shown = self._shown(part, self.updated(found, exponent, (part,), state), exponent, state)
            whole = float((shown.gradient**2).sum())
            if shown.square >= MOST * whole or exponent <= LEAST:
                return exponent, shown
            exponent -= LIFT

    def _velocities(self) -> Iterator[Mapping[str, Value]]:
        """Yield operands of the nodes with a velocity in integers."""
        for node in self._moving:
            if "velocity" in operands(node):
                yield operands(node)

    def _exponents_of_velocities(self, found: Pass) -> dict[str, Array]:
        """Return exponents, each by its name, with which one update uses most of a velocity's 8 bits."""
        pairs = [(own["velocity"].name, own["exponent"].name) for own in self._velocities()]
        made = {exponent: np.array(self._first[exponent]) for _, exponent in pairs}
        for bits in (LOWER, -LOWER):  # up from velocities that are cut off, then down to those that are fine enough
            left = pairs
            while left:
                after = self.updated(found, LEAST, (), {**self._start, **made})
                largest = {exponent: np.abs(after[name].astype(np.int64)).max() for name, exponent in left}
                left = [p for p in left if (largest[p[1]] >= LAST if bits > 0 else largest[p[1]] < VELOCITY)]
                left = [p for p in left if LOWEST < made[p[1]][0] < HIGHEST]
                for _, exponent in left:
                    moved = int(made[exponent][0]) + bits
                    made[exponent] = np.asarray([moved, 0, moved], np.int32)
        return made

    def _gathered(self, found: Pass) -> dict[str, Array]:
        """Return what the pass itself has left in the state: squares of gradients."""
        made: dict[str, Array] = {}
        for node in self.train.graph.nodes:
            for value in node.outputs:
                owner = self._trainer.owner(value.name)
                if node not in self._moving and owner in self._first and value.name in found.values:
                    made[owner] = found.values[value.name]
        return {name: array for name, array in made.items() if name not in self._exponents}

    def _shown(self, part: Part, after: State, exponent: int, before: State | None = None, number: int = 0) -> Shown:
        unit, rate = self.unit(part), 2.0**exponent / (self.train.batch if self._divided else 1)
        own = np.broadcast_to(part.factor() != 0, part.shape)
        if unit is None:
            old, new = (
                self.judged.tensors(part, state, self._how.optimizer) for state in (before or self._start, after)
            )
            gradient = implied(self._how, Step(rate, self._how.steps_before + number), old, new)
            return Shown(np.where(own, gradient, 0), own, np.zeros(part.shape), own)
        moved = self.real(part, self._start) - self.real(part, after)
        scale = np.broadcast_to(self._scale(part, unit), part.shape)
        coarse = scale * self._doubled(part, after)
        integers = np.asarray(after[part.name]).reshape(part.shape)
        last = LAST - 0.5 if integers.dtype == np.int8 else 2.0**31 - 1
        known = own & (np.abs(self.real(part, after)) < last * scale)
        step = 1 / 512 if unit.fraction else MEAN_ROUNDING if integers.dtype == np.int8 else 0.3
        return Shown(np.where(own, moved / rate, 0), known, coarse * (step / rate), own)

    @property
    def _divided(self) -> bool:
        """Whether one call is an update at a part of the rate."""
        return self.train.in_place and self.train.terms.divisor != "one"

    def _scale(self, part: Part, unit: IntegerUnit) -> NDArray[np.float64]:
        scale = np.asarray(unit.scale, np.float64)
        piece = self.train.trained[part.name].piece
        if piece is not None and piece.axis == "out" and scale.size > part.shape[0]:
            scale = scale[list(piece.channels)]
        return scale.reshape(-1, *[1] * (len(part.shape) - 1)) if scale.size > 1 else scale.reshape(())
