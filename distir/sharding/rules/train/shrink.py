"""The rule of the gradient of shrinkage, which is linear in the incoming gradient."""

from __future__ import annotations

from distir.sharding.rules.builder import train_rule
from distir.sharding.rules.train.activation import activation_gradient

train_rule("shrink_grad")(activation_gradient)
