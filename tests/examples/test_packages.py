"""Manifests of packages by the parsers of those who read them; examples of SDKs built with stand-ins for these."""

from __future__ import annotations

import importlib
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from testing.places import ROOT
from tinytrain_compile.compilation import make_project
from tinytrain_compile.driver.pipeline import Project
from tinytrain_compile.emit.packages import PackageFacts, package_files
from tinytrain_compile.options.compile_options import CompileOptions
from tinytrain_compile.target.loader import load_target

# Without types.
kconfiglib: Any = importlib.import_module("kconfiglib")
idf_manager: Any = importlib.import_module("idf_component_tools.manager")
platformio_parser: Any = importlib.import_module("platformio.package.manifest.parser")
platformio_schema: Any = importlib.import_module("platformio.package.manifest.schema")

SDKS = Path(__file__).parent / "sdks"
EXAMPLES = ROOT / "examples"
MODULE_KEYS = {"name", "build", "tests", "samples", "boards", "blobs", "security", "package-managers"}
BUILD_KEYS = {"cmake", "kconfig", "cmake-ext", "kconfig-ext", "depends", "settings"} | {
    f"sysbuild-{key}" for key in ("cmake", "kconfig", "cmake-ext", "kconfig-ext")
}
"""What scripts/zephyr_module.py of Zephyr knows; its schema refuses other keys."""


@pytest.fixture(scope="module")
def project() -> Project:
    """digits, its last layer trained, as examples/boards take it."""
    model = EXAMPLES / "digits" / "digits.onnx"
    made = make_project(CompileOptions(model, update="head", verify="none", target="nucleo-f746zg", package="cmake"))
    assert isinstance(made, Project)
    return made


def package(project: Project, kind: str, place: Path, title: str = "digits", board: str = "nucleo-f746zg") -> Path:
    """A package in a folder of its own."""
    facts = PackageFacts(title, load_target(board))
    for path, text in package_files(kind, project.bundle, facts).items():  # type: ignore[arg-type]
        (place / path).parent.mkdir(parents=True, exist_ok=True)
        (place / path).write_text(text)
    return place


def read_by_platformio(path: Path) -> Any:
    """A manifest as PlatformIO takes it, or its error."""
    return platformio_schema.ManifestSchema().load_manifest(
        platformio_parser.ManifestParserFactory.new_from_file(str(path)).as_dict()
    )


@pytest.mark.parametrize(("kind", "name"), [("platformio", "library.json"), ("arduino", "library.properties")])
def test_platformio_reads_both_manifests(kind: str, name: str, project: Project, tmp_path: Path) -> None:
    manifest = package(project, kind, tmp_path, 'a "quoted" name') / name
    read = read_by_platformio(manifest)
    assert read["headers"] == ["digits_train.h"] and read["name"] == "digits"
    manifest.write_text(re.sub(r'("?version"?[:=] ?"?)[0-9.]+', r"\1one", manifest.read_text()))
    with pytest.raises(Exception, match="version"):
        read_by_platformio(manifest)


def test_the_component_manager_of_esp_idf_reads_the_manifest(project: Project, tmp_path: Path) -> None:
    place = package(project, "esp-idf", tmp_path, 'a "quoted" name: x # y')
    manager = idf_manager.ManifestManager(str(place), "digits", upload_mode=True)
    assert manager.is_valid, manager.validation_errors
    manifest = manager.load()
    version = re.search(r'version = "(\S+)"', (ROOT / "pyproject.toml").read_text())
    assert version is not None and str(manifest.version) == version[1].replace(".dev", "-dev")
    assert "a 'quoted' name: x # y" in manifest.description and not manifest.requirements
    (place / "idf_component.yml").write_text("version: one\n")
    assert not idf_manager.ManifestManager(str(place), "digits", upload_mode=True).is_valid


def test_zephyrs_kconfig_and_module(project: Project, tmp_path: Path) -> None:
    """Two packages in one tree of settings, by the library that Zephyr reads Kconfig with."""
    place = package(project, "zephyr", tmp_path / "digits", 'a "quoted" name')
    other = (place / "zephyr" / "Kconfig").read_text().replace("DIGITS", "THERMO")
    (tmp_path / "Kconfig.thermo").write_text(other)
    files = (SDKS / "Kconfig.zephyr", place / "zephyr" / "Kconfig", tmp_path / "Kconfig.thermo")
    (tmp_path / "Kconfig").write_text("".join(f'source "{path}"\n' for path in files))
    settings = kconfiglib.Kconfig(str(tmp_path / "Kconfig"), warn_to_stderr=False)
    before = {name: settings.syms[name].str_value for name in ("FPU", "FPU_SHARING", "TINYTRAIN_DIGITS")}
    settings.load_config(str(EXAMPLES / "boards" / "zephyr" / "prj.conf"))
    after = {name: settings.syms[name].str_value for name in (*before, "TINYTRAIN_THERMO")}
    assert set(before.values()) == {"n"} and settings.warnings == []
    assert after == {"FPU": "y", "FPU_SHARING": "y", "TINYTRAIN_DIGITS": "y", "TINYTRAIN_THERMO": "n"}
    module = yaml.safe_load((place / "zephyr" / "module.yml").read_text())
    assert module["name"] == "digits" and set(module) <= MODULE_KEYS and set(module["build"]) <= BUILD_KEYS
    assert (place / module["build"]["cmake"] / "CMakeLists.txt").is_file()
    assert (place / module["build"]["kconfig"]).is_file()


NAMES = {
    "ch32v307": ("ch32v", "ch32v", "board = ch32v307_evt", "ch32v307v_evt_r1", None),
    "esp32-c3": ("esp32", "espressif32", "board = esp32-c3-devkitm-1", "esp32c3_devkitm", "esp32c3"),
    "esp32-c6": ("esp32", "espressif32", "board = esp32-c6-devkitc-1", "esp32c6_devkitc/esp32c6/hpcore", "esp32c6"),
    "esp32-p4": ("esp32", "espressif32", "board = esp32-p4", "esp32p4_function_ev_board/esp32p4/hpcore", "esp32p4"),
    "esp32-s3": ("esp32", "espressif32", "board = esp32-s3-devkitc-1", "esp32s3_devkitc/esp32s3/procpu", "esp32s3"),
    "gd32vf103": ("gd32v", "gd32v", "board = sipeed-longan-nano", "longan_nano", None),
    "nucleo-f746zg": ("*", "*", None, "BOARD", None),
    "rpi-pico2-riscv": (
        *("rp2040", "raspberrypi", "board = rpipico2, board_build.mcu = rp2350-riscv"),
        *("rpi_pico2/rp2350a/hazard3", None),
    ),
}
"""Typed a second time: architecture of Arduino, PlatformIO's platform and board, Zephyr's board, chip of ESP-IDF."""


@pytest.mark.parametrize("board", NAMES)
def test_packages_call_a_board_what_its_systems_do(board: str, project: Project, tmp_path: Path) -> None:
    architecture, platform, setting, zephyr, chip = NAMES[board]
    arduino, platformio, module, component = (
        package(project, kind, tmp_path / kind, board=board) for kind in ("arduino", "platformio", "zephyr", "esp-idf")
    )
    assert read_by_platformio(platformio / "library.json").get("platforms", ["*"]) == [platform]
    assert f"architectures={architecture}\n" in (arduino / "library.properties").read_text()
    sketch = (platformio / "examples" / "train_digits" / "train_digits.ino").read_text()
    assert f"sketch: platform = {platform}, {setting}." in sketch if setting else "platform =" not in sketch
    assert f"west build -b {zephyr} samples" in (module / "samples" / "train_digits" / "src" / "main.c").read_text()
    manager = idf_manager.ManifestManager(str(component), "digits", upload_mode=True)
    assert manager.is_valid and manager.load().targets == ([chip] if chip else [])
    command = "idf.py -C examples/train_digits set-target " + f"{chip} build"
    assert (command in (component / "examples" / "train_digits" / "main" / "main.c").read_text()) == bool(chip)


@pytest.mark.parametrize(
    ("kind", "folder", "variable", "program"),
    [("zephyr", "zephyr/digits", "ZEPHYR_BASE", "app"), ("esp-idf", "esp-idf/components/digits", "IDF_PATH", "learn")],
)
def test_the_examples_of_sdks_build_by_their_own_cmake_files(
    kind: str, folder: str, variable: str, program: str, project: Project, tmp_path: Path
) -> None:
    """For this machine, with sdks/ in the place of the SDK; the CMakeLists.txt are those of the package and example."""
    shutil.copytree(EXAMPLES / "boards", tmp_path / "boards")
    package(project, kind, tmp_path / "boards" / folder)
    sdk = {variable: str(SDKS / ("zephyr" if kind == "zephyr" else "idf")), "PATH": "/usr/bin:/bin"}
    source = tmp_path / "boards" / kind
    for command in (["cmake", "-S", source, "-B", "build"], ["cmake", "--build", "build"], [f"build/{program}"]):
        done = subprocess.run(command, cwd=tmp_path, env=sdk, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout == "learned: 0 (0 is well)\n"


@pytest.mark.parametrize(
    ("kind", "source", "variable", "program"),
    [
        ("zephyr", "samples/train_digits", "ZEPHYR_BASE", "app"),
        ("esp-idf", "examples/train_digits", "IDF_PATH", "train_digits"),
    ],
)
def test_the_example_in_the_package_builds_by_its_own_cmake_files(
    kind: str, source: str, variable: str, program: str, project: Project, tmp_path: Path
) -> None:
    place = package(project, kind, tmp_path / "digits")
    sdk = {variable: str(SDKS / ("zephyr" if kind == "zephyr" else "idf")), "PATH": "/usr/bin:/bin"}
    for command in (
        ["cmake", "-S", place / source, "-B", "build"],
        ["cmake", "--build", "build"],
        [f"build/{program}"],
    ):
        done = subprocess.run(command, cwd=tmp_path, env=sdk, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stdout + done.stderr
    losses = [int(number) for number in re.findall(r"^loss (\d+) / 1000$", done.stdout, re.MULTILINE)]
    assert len(losses) == 10 and losses[-1] < 0.5 * losses[0]
