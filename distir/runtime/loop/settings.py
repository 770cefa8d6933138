"""
Learning rates that change from step to step, with the same values as PyTorch's
schedulers.
"""

import json
from dataclasses import dataclass, field
from math import cos, pi
from pathlib import Path

from .. import runtime

DECAYS = ("none", "linear", "cosine")


@dataclass(frozen=True)
class StepSettings:
    """
    The hyper-parameters of the optimizer in each step. Steps count from 1.

    - `warmup`: the number of first steps in which the learning rate grows by equal
      amounts; it has its full value in the last of these steps (`LinearLR` with
      `start_factor` 1/N and `total_iters` N - 1).
    - `decay`: after the warm-up, the rate falls to `least` as a `cosine`
      (`CosineAnnealingLR`) or `linear` (`LinearLR`), and would reach `least` in the
      step after `last`; with `none` the rate stays.
    - `given`: the values of all steps by setting, which replace the schedule and the
      program's own values.
    """

    warmup: int = 0
    decay: str = "none"
    least: float = 0.0
    last: int = 0
    given: dict = field(default_factory=dict)

    def at(self, step, spec):
        """
        Returns the value in step `step` of the setting that the program takes as
        argument `spec`. Raises ProgramError if the user's values for the setting do not
        reach this step.
        """
        known = self.given.get(spec.setting)
        if known is not None:
            if step > len(known):
                raise runtime.ProgramError(
                    f"there are values of {spec.setting} for {len(known)} steps, and none "
                    f"for step {step}"
                )
            return known[step - 1]
        if spec.setting != "learning_rate":
            return spec.default
        return self.rate(step - 1, spec.default)

    def rate(self, done, full):
        """Returns the learning rate after `done` steps, if its full value is `full`."""
        if done < self.warmup:
            return full * (done + 1) / self.warmup
        if self.decay == "none":
            return full
        done, steps = done - self.warmup, self.last - self.warmup
        share = min(done / steps, 1.0) if steps > 0 else 1.0
        left = (1 + cos(pi * share)) / 2 if self.decay == "cosine" else 1 - share
        return self.least + (full - self.least) * left

    def changes(self):
        """Whether a warm-up, a decay or values of steps are set."""
        return bool(self.warmup or self.decay != "none" or self.given)


def read(path):
    """
    Returns the values of all steps by setting, from a JSON file. Raises ProgramError if
    the file cannot be read.
    """
    try:
        found = json.loads(Path(path).read_text(encoding="utf-8"))
        return {name: [float(v) for v in values] for name, values in found.items()}
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise runtime.ProgramError(
            f"{path} does not hold a list of numbers for each setting: {error}"
        ) from error
