"""The first files that a visitor of the repository meets: workflow, forms, citation, security page."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from trove_classifiers import classifiers

from testing.places import ROOT
from tinytrain_compile.cli.command import command
from tinytrain_compile.target.loader import load_target

GITHUB = ROOT / ".github"
FORMS = sorted(path.name for path in (GITHUB / "ISSUE_TEMPLATE").glob("*.yml") if path.name != "config.yml")
KINDS = {"markdown", "input", "textarea", "dropdown", "checkboxes"}
"""Elements of a form, by GitHub's schema for them."""
SURFACE = [".github", "SECURITY.md", "CITATION.cff", "docs/measure-your-board.md"]


def read(path: Path) -> dict[str, Any]:
    content = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert isinstance(content, dict)
    return content


def surface_texts() -> dict[str, str]:
    paths = [
        one for name in SURFACE for one in ([ROOT / name] if (ROOT / name).is_file() else (ROOT / name).rglob("*"))
    ]
    return {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in paths if path.is_file()}


def makes() -> set[str]:
    phony = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert phony is not None
    return set(phony[1].split())


def unknown_commands(line: str) -> list[str]:
    """Return the parts of a step's command that this repository does not have: targets of make, scripts."""
    unknown: list[str] = []
    for part in re.split(r"&&|\|\||;|\n", line):
        words = part.split()
        if words[:1] == ["make"]:
            unknown += [f"make {word}" for word in words[1:] if "=" not in word and word not in makes()]
        elif words[:1] in (["sh"], ["bash"], ["python"], ["python3"]):
            unknown += [] if (ROOT / words[1]).is_file() else [words[1]]
        elif words[:1] not in ([], ["apt-get"]):
            unknown.append(words[0])
    return unknown


def test_the_workflow_runs_what_ci_runs() -> None:
    workflow = read(GITHUB / "workflows" / "ci.yml")
    steps = [step for job in workflow["jobs"].values() for step in job["steps"]]
    commands = [step["run"] for step in steps if "run" in step]
    assert "bash .ci/run" in commands and "sh scripts/install_tools.sh" in commands and "make release-check" in commands
    assert [word for line in commands for word in unknown_commands(line)] == []
    assert workflow["permissions"] == {"contents": "read"}
    assert all({"run", "uses"} & set(step) for step in steps) and all("runs-on" in j for j in workflow["jobs"].values())
    assert workflow["jobs"]["tests"]["container"] == "debian:12" and "Debian 12+" in (ROOT / "README.md").read_text()


def test_a_command_that_is_gone_is_noticed() -> None:
    assert unknown_commands("make docs-site ARGS=1 && sh scripts/install_tools.sh") == []
    assert unknown_commands("make gone && bash .ci/gone; tox") == ["make gone", ".ci/gone", "tox"]


def test_every_yaml_file_is_one() -> None:
    files = [*GITHUB.rglob("*.yml"), *ROOT.glob("*.cff"), *ROOT.glob("*.yml"), *ROOT.glob(".*.yaml")]
    assert len(files) == 9 and all(read(path) for path in files)


@pytest.mark.parametrize("name", FORMS)
def test_a_form_is_one(name: str) -> None:
    form = read(GITHUB / "ISSUE_TEMPLATE" / name)
    assert set(form) <= {"name", "description", "title", "labels", "assignees", "projects", "type", "body"}
    assert form["name"] and form["description"]
    asked = [element for element in form["body"] if element["type"] != "markdown"]
    assert {element["type"] for element in form["body"]} <= KINDS
    assert all(set(element) <= {"type", "id", "attributes", "validations"} for element in form["body"])
    ids, labels = [element["id"] for element in asked], [element["attributes"]["label"] for element in asked]
    assert len(set(ids)) == len(ids) and len(set(labels)) == len(labels)
    assert all(re.fullmatch(r"[A-Za-z0-9_-]+", one) for one in ids)
    for element in asked:
        choices = element["attributes"].get("options", [])
        assert bool(choices) == (element["type"] == "dropdown") and all(isinstance(choice, str) for choice in choices)
    assert any("--version" in str(element) for element in asked)


def test_the_forms() -> None:
    assert FORMS == ["board.yml", "bug.yml", "model.yml", "question.yml"]
    assert read(GITHUB / "ISSUE_TEMPLATE" / "config.yml") == {"blank_issues_enabled": False}


def test_the_form_of_a_board_asks_for_what_the_program_measures() -> None:
    program = (ROOT / "examples" / "boards" / "measure.c").read_text(encoding="utf-8")
    struct = program.partition("typedef struct {")[2].partition("} measurement;")[0]
    lines = re.findall(r"^    \w+ ([\w, ]+);", struct, re.MULTILINE)
    fields = {field for line in lines for field in line.split(", ")}
    assert len(fields) == 12
    element = next(e for e in read(GITHUB / "ISSUE_TEMPLATE" / "board.yml")["body"] if e.get("id") == "measured")
    page = (ROOT / "docs" / "measure-your-board.md").read_text(encoding="utf-8")
    assert [field for field in sorted(fields) if field not in element["attributes"]["value"]] == []
    assert [field for field in sorted(fields) if f"`{field}`" not in page] == []


def test_paths_options_and_boards_that_these_texts_name_exist() -> None:
    options = {flag for parameter in command.params for flag in parameter.opts} | {"--version", "--explain"}
    folders = r"docs|examples|scripts|tests|\.github"
    for name, text in surface_texts().items():
        paths = re.findall(rf"(?<![\w/.-])(?:{folders})/[\w./-]*[\w]", text)
        assert [one for one in paths if not (ROOT / one).exists() and not one.endswith("cmake/digits")] == [], name
        called = re.findall(r"tinytrain-compile (.*?)(?:`|$)", text, re.MULTILINE)
        flags = {flag for line in called for flag in re.findall(r"(?<!\S)--?[a-z][a-z-]*", line)}
        assert sorted(flags - options) == [], name
    assert load_target("nucleo-f746zg").board is not None


def test_the_citation_is_of_the_last_release() -> None:
    """CFF 1.2.0 asks for cff-version, message, title and authors; the release is that of CHANGELOG.md."""
    citation = read(ROOT / "CITATION.cff")
    assert citation["cff-version"] == "1.2.0" and citation["message"] and citation["type"] == "software"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert citation["title"] == project["name"] and citation["license"] == project["license"]
    assert citation["authors"] == project["authors"]
    released = re.search(r"^## (\d\S*), (\S+)$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert released is not None
    assert (citation["version"], citation["date-released"]) == released.groups()


def test_the_classifiers_exist_and_the_address_stands_once() -> None:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    project = tomllib.loads(text)["project"]
    assert [one for one in project["classifiers"] if one not in classifiers] == []
    assert project["classifiers"] == sorted(project["classifiers"])
    (address,) = project["urls"].values()
    assert text.count(address) == 1
    assert [name for name, content in surface_texts().items() if address in content] == []
