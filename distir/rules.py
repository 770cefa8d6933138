"""
Sharding rules: the relations between the dimensions of an op's operands and results,
for splitting the op over devices. The names of this module are public:
docs/reference/public-names.md lists each name with the version since which it is
stable.

A rule names factors, such as the rows, the columns and the inner dimension of a matrix
product, and gives the factors of each dimension. DistIR derives everything else from
the rule: the legal layouts, the layouts of results, the all-reduce of a split sum and
the work of each device. `distir.extension.register_op` takes a rule as text, or as a
function from an op to its `Rule`. The other functions of this module make rules.
"""

from __future__ import annotations

from distir.dialects.tensors import shape_of as shape_of
from distir.sharding.factor_text import checked_rule as rule_from_text
from distir.sharding.map_rule import rule_from_maps as rule_from_maps
from distir.sharding.rule import Rule as Rule
from distir.sharding.rules.builder import RuleBuilder as RuleBuilder
from distir.sharding.rules.elementwise import elementwise_rule as elementwise_rule

__all__ = [
    "Rule",
    "RuleBuilder",
    "elementwise_rule",
    "rule_from_maps",
    "rule_from_text",
    "shape_of",
]
