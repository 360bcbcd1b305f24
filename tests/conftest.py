"""Options and fixtures of all tests."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path

import pytest

from tinytrain_compile.driver.code import generate as code
from tinytrain_compile.ir.kernels import KernelCache
from tinytrain_compile.verify.objects import VARIABLE

gc.set_threshold(100_000, 50, 1_000)  # looking for cycles among all that tests keep takes a twentieth of their time
GOLDEN = Path(__file__).parent / "golden"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write tests/golden anew from what the code makes")


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

    Boards, and commands in processes of their own, keep the flags that a user has; tests of levels and compilers name
    theirs (emit/test_any_build.py).
    """
    build = import_module("tinytrain_compile.verify.build")  # a function of the package has the same name
    with pytest.MonkeyPatch.context() as patch:
        for flags in ("HOST_FLAGS", "SANITIZE"):
            patch.setattr(build, flags, tuple("-O0" if flag == "-Og" else flag for flag in getattr(build, flags)))
        yield
