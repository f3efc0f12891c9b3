"""Commands of the start pages are found as a reader would find them. `make test-all` runs them."""

from __future__ import annotations

import tomllib

import pytest
from scripts.first_half_hour import ROOT, free_names, start_pages, steps_of

PAGE = """
`forebay cache ls` and `ray job submit` and `forebay doctor JOB.py`
```
pip install x  # first
prints this: forebay run
forebay run a.py \\
  data=b
{"python": 1}
```
```toml
forebay = 1
```
```python
# a.py
import forebay as fb
```
```python
for each in range(2):
    print(each)
```
```python
print(rank)
```
"""


def test_commands_files_and_programs_are_found() -> None:
    steps = list(steps_of("page.md", PAGE))
    assert [step.command for step in steps] == [
        "forebay cache ls",
        "pip install x",
        "forebay run a.py    data=b",
        "python -m py_compile a.py",
        "python page_6.py",
    ]
    assert [step.code[:6] for step in steps] == ["", "", "", "# a.py", "for ea"]


@pytest.mark.parametrize(
    ("code", "free"),
    [
        ("import a.b, c as d\nprint(a, d)", set()),
        ("def f(x):\n    return [y + z for y in x]", {"z"}),
        ("class C:\n    def m(self):\n        return C, other", {"other"}),
        ("with open(name) as file:\n    file", {"name"}),
    ],
)
def test_names_that_nothing_binds(code: str, free: set[str]) -> None:
    assert free_names(code) == free


def test_every_command_of_the_start_pages_has_a_limit() -> None:
    pages = start_pages()
    assert pages[:2] == [ROOT / "README.md", ROOT / "docs" / "tutorial.md"]
    steps = [step for page in pages for step in steps_of(page.name, page.read_text())]
    assert len(steps) >= 20
    assert all(step.limit_s > 0 for step in steps)


def test_readme_installs_a_pytorch_that_the_package_takes() -> None:
    (torch,) = (
        line
        for line in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
        if line.startswith("torch")
    )
    first = next(steps_of("README.md", (ROOT / "README.md").read_text())).command
    assert first == f"pip install 'torch{torch.partition(',')[2]}'", "else the second line installs another one"
