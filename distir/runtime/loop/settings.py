"""Learning rates that change from step to step, as PyTorch's schedulers change them."""

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

    - `warmup`: the number of first steps in which the learning rate grows in equal parts to
      its full value, which it first has in the last of them (`LinearLR` with `start_factor`
      1/N and `total_iters` N - 1).
    - `decay`: from then on it falls to `least` as `cosine` (`CosineAnnealingLR`) or
      `linear` (`LinearLR`), which it would reach in the step after `last`; or it stays:
      `none`.
    - `given`: the values of all steps by setting, instead of these and of the program's.
    """

    warmup: int = 0
    decay: str = "none"
    least: float = 0.0
    last: int = 0
    given: dict = field(default_factory=dict)

    def at(self, step, spec):
        """Returns the value, in a step, of the setting that an argument stands for."""
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
        """Returns the learning rate after so many steps, given the full one."""
        if done < self.warmup:
            return full * (done + 1) / self.warmup
        if self.decay == "none":
            return full
        done, steps = done - self.warmup, self.last - self.warmup
        share = min(done / steps, 1.0) if steps > 0 else 1.0
        left = (1 + cos(pi * share)) / 2 if self.decay == "cosine" else 1 - share
        return self.least + (full - self.least) * left

    def changes(self):
        """Whether it changes the settings of any step."""
        return bool(self.warmup or self.decay != "none" or self.given)


def read(path):
    """Reads the values of all steps by setting, from a JSON file."""
    try:
        found = json.loads(Path(path).read_text(encoding="utf-8"))
        return {name: [float(v) for v in values] for name, values in found.items()}
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise runtime.ProgramError(
            f"{path} does not hold a list of numbers for each setting: {error}"
        ) from error
