"""Options and fixtures of all tests."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import pytest

from testing import tiers
from tinytrain_compile.driver.code import generate as code
from tinytrain_compile.ir.kernels import KernelCache
from tinytrain_compile.verify.objects import VARIABLE

gc.set_threshold(100_000, 50, 1_000)  # looking for cycles among all that tests keep takes a twentieth of their time
GOLDEN = Path(__file__).parent / "golden"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write tests/golden anew from what the code makes")
    parser.addoption("--tier", choices=("fast", "more"), help="tests of make test, cheap ones first, or others")
    parser.addoption("--first", default="", help="with --tier: folders below tests/ to begin with, joined by commas")
    parser.addoption("--record-durations", action="store_true", help="write tests/durations.json from what was run")


# ---- tiers and durations (testing/tiers.py) -------------------------------------------------------------------------

_SECONDS: dict[str, float] = {}
"""CPU seconds by test, in the process that reports."""
_BEGUN = pytest.StashKey[float]()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    tier = config.getoption("--tier")
    if tier is None:
        return
    later = tiers.later_ones([item.nodeid for item in items], tiers.read_tiers())
    chosen = [item for item in items if (item.nodeid in later) == (tier == "more")]
    config.hook.pytest_deselected(items=[item for item in items if (item.nodeid in later) != (tier == "more")])
    first = str(config.getoption("--first")).split(",")
    names, turned = [item.nodeid for item in chosen], tiers.TURNED if tier == "fast" else 0
    order = tiers.in_order(names, tiers.read_costs(), first, dear_first=tier == "more", turned=turned)
    items[:] = [chosen[i] for i in order]


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    item.stash[_BEGUN] = tiers.cpu_seconds()
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if call.when == "teardown":
        report.user_properties.append(("cpu", tiers.cpu_seconds() - item.stash[_BEGUN]))
    return report


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    for name, value in report.user_properties:
        if name == "cpu" and report.when == "teardown" and isinstance(value, float):
            _SECONDS[report.nodeid] = value


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if config.getoption("--tier") is None and not config.getoption("--record-durations"):
        return
    costs = tiers.read_costs()
    terminalreporter.write_line(f"{sum(_SECONDS.values()):.0f} CPU seconds in tests")
    if config.getoption("--tier") == "fast":
        for line in tiers.remarks(_SECONDS, costs):
            terminalreporter.write_line(line)
    if config.getoption("--record-durations"):
        new = tiers.measured(_SECONDS)
        known = {file: tests for file, tests in costs.items() if (tiers.ROOT / "tests" / file).is_file()}
        tiers.write_costs(known | new)


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """golden(name, text): compare a text with tests/golden/name, or write it there with --update-golden.

    Goldens show a person what changed in generated C; that it is right is for other tests to prove.
    """

    def compare(name: str, text: str) -> None:
        path = GOLDEN / name
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        assert path.is_file(), f"{path} is missing; pytest --update-golden writes it"
        assert text == path.read_text(encoding="utf-8"), f"{name} changed; pytest --update-golden accepts that"

    return compare


@pytest.fixture(scope="session", autouse=True)
def _objects(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Every distinct C file of a check is compiled once, in all processes together; see verify/objects.py."""
    own = tmp_path_factory.getbasetemp()
    everyone = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, str(everyone / "objects"))
        yield


@pytest.fixture(scope="session", autouse=True)
def _kernels() -> Iterator[None]:
    """Compilations of a test process share their kernels: most tests compile one of a few networks in their own way."""
    kept = KernelCache(limit=4096)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(code, "KernelCache", lambda: kept)
        yield


@pytest.fixture(scope="session", autouse=True)
def _quick_c() -> Iterator[None]:
    """Networks of tests run in a moment: unoptimised, GCC takes a fifth less time, a third with AddressSanitizer.

    Helpers are functions there instead of copies in every kernel, which takes it another quarter less.
    Boards, libraries, and commands in processes of their own, keep the flags that a user has; tests of levels and
    compilers name theirs (emit/test_any_build.py).
    """
    from tinytrain_compile.verify import build

    with pytest.MonkeyPatch.context() as patch:
        for flags in ("HOST_FLAGS", "SANITIZE"):
            patch.setattr(build, flags, tuple("-O0" if flag == "-Og" else flag for flag in getattr(build, flags)))
        patch.setattr(build, "HOST_FLAGS", (*build.HOST_FLAGS, "-Dalways_inline=unused"))
        patch.setattr(build, "LIBRARY_FLAGS", (*build.LIBRARY_FLAGS, "-Ualways_inline"))
        yield
