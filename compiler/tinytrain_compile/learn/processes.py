"""Work shared out to processes by joblib, whose backend is the caller's choice (`joblib.parallel_config`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import joblib  # pyright: ignore[reportMissingTypeStubs]

Found = TypeVar("Found")


def in_processes(call: Callable[..., Found], work: Iterable[tuple[Any, ...]], jobs: int) -> Iterator[Found]:
    """Yield what `call` makes of each, in order, as it comes. jobs: processes, -1 for all cores."""
    pool: Any = joblib.Parallel(n_jobs=jobs, return_as="generator")
    yield from pool((call, one, {}) for one in work)
