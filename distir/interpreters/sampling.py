"""
Sampling of images at the points of a grid, with PyTorch's semantics, and its gradients.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

_CUBIC = -0.75


@dataclass(frozen=True)
class Sampling:
    """
    Sampling of an image at the points of a grid. `mode`, `padding` and `aligned` are
    the attributes `mode`, `padding_mode` and `align_corners` of `onnx.GridSample`.
    """

    mode: str
    padding: str
    aligned: bool

    def samples(self, x: Array, grid: Array) -> Array:
        """
        Returns the samples `[N, C, *points]` of the image `x` `[N, C, *space]` at the
        points of `grid` `[N, *points, spatial dimensions]`.
        """
        out = np.zeros((*x.shape[:2], *grid.shape[1:-1]), x.dtype)
        for where, weight, _ in self._taps(x.shape[2:], grid):
            out += weight[:, None] * _read(x, where)
        return out

    def image_gradient(self, dy: Array, grid: Array, shape: Sequence[int]) -> Array:
        """
        Returns the gradient of the image, an array of shape `shape`, from the gradient
        `dy` of the samples.
        """
        dx = np.zeros(shape, dy.dtype)
        rows = np.arange(shape[0]).reshape(-1, *[1] * (grid.ndim - 2))
        moved = np.moveaxis(dx, 1, -1)
        for where, weight, _ in self._taps(shape[2:], grid):
            np.add.at(moved, (rows, *where), np.moveaxis(weight[:, None] * dy, 1, -1))
        return dx

    def grid_gradient(self, dy: Array, x: Array, grid: Array) -> Array:
        """
        Returns the gradient of `grid` from the gradient `dy` of the samples of `x`.
        """
        found = np.zeros_like(grid)
        for where, _, slopes in self._taps(x.shape[2:], grid):
            products = (dy * _read(x, where)).sum(1)
            found += products[..., None] * np.stack(slopes[::-1], -1)
        return found

    def _taps(
        self, sizes: Sequence[int], grid: Array
    ) -> Iterator[tuple[list[Array], Array, list[Array]]]:
        """
        Yields the contributions of image elements to the samples; each yield holds one
        contribution to every sample. A contribution consists of the element's indices
        in each spatial dimension, its weight, and the derivatives of the weight with
        respect to the grid's coordinates.
        """
        along = [
            self._along(size, grid[..., -1 - dim]) for dim, size in enumerate(sizes)
        ]
        for taps in product(*along):
            weights = [weight for _, weight, _ in taps]
            slopes = [
                np.multiply.reduce([*weights[:i], slope, *weights[i + 1 :]])
                for i, (_, _, slope) in enumerate(taps)
            ]
            yield [place for place, _, _ in taps], np.multiply.reduce(weights), slopes

    def _along(self, size: int, points: Array) -> list[tuple[Array, Array, Array]]:
        """
        Returns the contributions of elements to samples along one dimension of `size`
        elements. The samples are at the coordinates `points`. A contribution consists
        of the element's index, its weight, and the derivative of the weight.
        """
        scale = (size - 1) / 2 if self.aligned else size / 2
        at = (points + 1) * scale - (0 if self.aligned else 0.5)
        slope = np.full_like(at, scale)
        if self.mode != "cubic":
            at, factor = self._inside(at, size)
            slope = slope * factor
        if self.mode == "nearest":
            terms = [(np.rint(at), np.ones_like(at), np.zeros_like(at))]
        elif self.mode == "linear":
            first = np.floor(at)
            rest = at - first
            terms = [(first, 1 - rest, -slope), (first + 1, rest, slope)]
        else:
            first = np.floor(at)
            terms = [(first + i, *_cubic(at - first - i, slope)) for i in (-1, 0, 1, 2)]
        return [self._read_at(*term, size) for term in terms]

    def _read_at(
        self, place: Array, weight: Array, slope: Array, size: int
    ) -> tuple[Array, Array, Array]:
        """
        Returns valid indices for the elements at `place`, with their weights and the
        derivatives of the weights. An element outside of the image gets index 0 and
        weight 0, so it counts as zero.
        """
        if self.mode == "cubic":
            place, _ = self._inside(place, size)
        held = (place >= 0) & (place <= size - 1)
        where = np.where(held, place, 0).astype(np.int64)
        return where, np.where(held, weight, 0), np.where(held, slope, 0)

    def _inside(self, at: Array, size: int) -> tuple[Array, Array]:
        """
        Returns the positions `at`, brought into the image as `padding` says, and the
        derivatives of the new positions with respect to `at`. If `padding` is "zeros",
        the positions stay unchanged.
        """
        one = np.ones_like(at)
        if self.padding == "zeros":
            return at, one
        if self.padding == "reflection":
            low = 0.0 if self.aligned else -0.5
            span = size - 1 if self.aligned else size
            if not span:
                return np.zeros_like(at), np.zeros_like(at)
            distance = np.abs(at - low)
            turns = np.floor(distance / span)
            rest = np.fmod(distance, span)
            is_back = turns % 2 == 1
            one = np.where(at < low, -1, 1) * np.where(is_back, -one, one)
            at = np.where(is_back, span - rest, rest) + low
        clipped = np.clip(at, 0, size - 1)
        return clipped, np.where((at > 0) & (at < size - 1), one, 0)


def _cubic(distance: Array, slope: Array) -> tuple[Array, Array]:
    """
    Returns the weights, in cubic interpolation, of elements at `distance` from a
    sampled point, and the derivatives of the weights, multiplied by `slope`.
    """
    d, sign = np.abs(distance), np.sign(distance)
    near = ((_CUBIC + 2) * d - (_CUBIC + 3)) * d * d + 1
    far = ((_CUBIC * d - 5 * _CUBIC) * d + 8 * _CUBIC) * d - 4 * _CUBIC
    near_slope = (3 * (_CUBIC + 2) * d - 2 * (_CUBIC + 3)) * d
    far_slope = (3 * _CUBIC * d - 10 * _CUBIC) * d + 8 * _CUBIC
    is_near = d <= 1
    weight = np.where(is_near, near, far)
    return weight, np.where(is_near, near_slope, far_slope) * sign * slope


def _read(x: Array, where: Sequence[Array]) -> Array:
    """
    Returns the elements of `x` `[N, C, *space]` at the indices `where`, in every
    channel: `[N, C, *points]`.
    """
    rows = np.arange(len(x)).reshape(-1, *[1] * (where[0].ndim - 1))
    return np.moveaxis(np.moveaxis(x, 1, -1)[(rows, *where)], -1, 1)
