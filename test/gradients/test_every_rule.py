"""No gradient rule is without a case that checks it."""

import importlib
from pathlib import Path

from distir.gradients.rule import registered_rules


def test_every_registered_rule_has_a_case():
    covered: set[str] = set()
    for path in sorted(Path(__file__).parent.glob("test_*.py")):
        module = importlib.import_module(f"gradients.{path.stem}")
        covered.update(case.op_name for case in getattr(module, "CASES", []))
    assert registered_rules() <= covered, sorted(registered_rules() - covered)
