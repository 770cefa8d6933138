"""Resampling of images with ONNX's options, and selection of boxes."""

import math

import torch

from ..devices import here


def _positions(count, size, scale, place, start, end):
    """
    Returns the positions of `count` output elements along an axis of the input, which
    has `size` elements. `place` is ONNX's `coordinate_transformation_mode`.
    """
    i = torch.arange(count, dtype=torch.float64, device=here())
    length = scale * size
    if place == "align_corners":
        return i * 0 if length == 1 else i * (size - 1) / (length - 1)
    if place == "asymmetric":
        return i / scale
    if place == "tf_crop_and_resize":
        step = (end - start) * (size - 1)
        inside = i * 0 + step / 2 if length == 1 else i * step / (length - 1)
        return inside + start * (size - 1)
    if place == "pytorch_half_pixel" and length == 1:
        return i * 0 - 0.5
    shift = size / 2 * (1 - count / length) if place == "half_pixel_symmetric" else 0.0
    return shift + (i + 0.5) / scale - 0.5


def _kernel(distance, mode, cubic):
    """
    Returns the weights of samples at distances `distance`, for linear or cubic
    interpolation.
    """
    d = distance.abs()
    if mode == "linear":
        return (1 - d).clamp(min=0)
    near = ((cubic + 2) * d - (cubic + 3)) * d * d + 1
    far = ((cubic * d - 5 * cubic) * d + 8 * cubic) * d - 4 * cubic
    return torch.where(d <= 1, near, torch.where(d < 2, far, 0.0))


def _resize_axis(
    x,
    axis,
    count,
    scale,
    span,
    *,
    mode,
    place,
    rounding,
    antialias,
    cubic,
    exclude_outside,
    outside,
):
    """
    Returns `x` resampled to `count` elements along `axis`. The new elements are `1 /
    scale` input elements apart.
    """
    size = x.shape[axis]
    at = _positions(count, size, scale, place, *span)
    shape = [1] * x.dim()
    shape[axis] = count
    if mode == "nearest":
        near = {
            "round_prefer_floor": torch.ceil(at - 0.5),
            "round_prefer_ceil": torch.floor(at + 0.5),
            "floor": torch.floor(at),
            "ceil": torch.ceil(at),
        }[rounding]
        out = x.index_select(axis, near.to(torch.int64).clamp(0, size - 1))
    else:
        squeeze = min(scale, 1.0) if antialias else 1.0
        reach = 1 if mode == "linear" else 2
        first = math.floor(-reach / squeeze) + 1
        offsets = torch.arange(first, 2 - first, device=here())
        base = at.floor()
        places = base.to(torch.int64).unsqueeze(1) + offsets
        weights = _kernel((places - at.unsqueeze(1)) * squeeze, mode, cubic)
        if exclude_outside:
            weights = torch.where((places < 0) | (places >= size), 0, weights)
        if exclude_outside or antialias:
            weights = weights / weights.sum(1, keepdim=True)
        places = places.clamp(0, size - 1)
        out = 0
        for k in range(len(offsets)):
            part = x.index_select(axis, places[:, k])
            out = out + part * weights[:, k].reshape(shape)
    if place == "tf_crop_and_resize":
        lost = ((at < 0) | (at > size - 1)).reshape(shape)
        out = torch.where(lost, outside, out)
    return out


def resize(x, roi, scales, sizes, policy, axes, **options):
    """
    Returns `x` interpolated along each axis in turn, to `sizes` if given, else by
    `scales`. The options are passed to `_resize_axis`.
    """
    axes = list(range(x.dim())) if axes is None else [axis % x.dim() for axis in axes]
    if sizes is not None:
        sizes = [int(size) for size in sizes]
        scales = [s / x.shape[axis] for s, axis in zip(sizes, axes, strict=True)]
        if policy != "stretch":
            scale = min(scales) if policy == "not_larger" else max(scales)
            scales = [scale] * len(axes)
            sizes = [int(scale * x.shape[axis] + 0.5) for axis in axes]
    else:
        sizes = [int(s * x.shape[axis]) for s, axis in zip(scales, axes, strict=True)]
    out = x.to(torch.float64)
    for i, axis in enumerate(axes):
        span = (roi[i], roi[i + len(axes)]) if roi else (0.0, 1.0)
        if scales[i] == 1.0 and sizes[i] == x.shape[axis] and span == (0.0, 1.0):
            continue
        out = _resize_axis(out, axis, sizes[i], scales[i], span, **options)
    if x.is_floating_point():
        return out.to(x.dtype)
    limits = torch.iinfo(x.dtype)
    return out.round().clamp(limits.min, limits.max).to(x.dtype)


def resize_grad(dy, shape, scales, **options):
    """
    Returns the gradient of `resize` for an input of shape `shape`, with one scale for
    each axis. Resizing unit vectors gives the weight of each input element in each
    output element.
    """
    out = dy.to(torch.float64)
    for axis, (size, scale) in enumerate(zip(shape, scales, strict=True)):
        count = dy.shape[axis]
        if count == size and scale == 1.0:
            continue
        alone = torch.eye(size, dtype=torch.float64, device=here())
        span = (0.0, 1.0)
        weights = _resize_axis(alone, 1, count, scale, span, outside=0.0, **options)
        weights = weights.to(dy.device)
        out = torch.tensordot(out, weights, ([axis], [1])).movedim(-1, axis)
    return out.to(dy.dtype)


def _corners(boxes, centers):
    """
    Returns the smallest and the largest corner of each box. With `centers`, the boxes
    are given as centre and size, else as two corners.
    """
    if centers:
        middle, half = boxes[:, :2], boxes[:, 2:] / 2
        return middle - half, middle + half
    first, second = boxes[:, :2], boxes[:, 2:]
    return torch.minimum(first, second), torch.maximum(first, second)


def non_max_suppression(boxes, scores, count, overlap, least_score, centers):
    """
    Returns rows (batch, class, box) of the best boxes, at most `count` per batch entry
    and class. A box is left out if its overlap with a better box is more than the
    fraction `overlap` of their union, or its score is not above `least_score`.
    """
    chosen = []
    for batch in range(scores.shape[0]):
        low, high = _corners(boxes[batch], centers)
        areas = (high - low).prod(1)
        for kind in range(scores.shape[1]):
            own = scores[batch, kind]
            kept = []
            for box in own.argsort(descending=True, stable=True).tolist():
                if len(kept) >= count:
                    break
                if least_score is not None and not bool(own[box] > least_score):
                    continue
                sides = torch.minimum(high[box], high[kept]) - torch.maximum(
                    low[box], low[kept]
                )
                common = sides.clamp(min=0).prod(1)
                union = areas[box] + areas[kept] - common
                if not bool((common > overlap * union).any()):
                    kept.append(box)
            chosen += [(batch, kind, box) for box in kept]
    return torch.tensor(chosen, dtype=torch.int64, device=here()).reshape(-1, 3)


def _bilinear(image, y, x, edge):
    """
    Returns the four weighted neighbours of each point (`y`, `x`) in `image` [channels,
    height, width], whose sum is the sample. Points outside of the image have the value
    0. With `edge`, points up to one element outside have the value of the edge.
    """
    height, width = image.shape[-2:]
    valid = torch.ones_like(y, dtype=torch.bool)
    if edge:
        valid = (y >= -1) & (y <= height) & (x >= -1) & (x <= width)
        y, x = y.clamp(0, height - 1), x.clamp(0, width - 1)
    top, left = y.floor(), x.floor()
    terms = []
    for row, row_weight in ((top, 1 - (y - top)), (top + 1, y - top)):
        for column, column_weight in ((left, 1 - (x - left)), (left + 1, x - left)):
            inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
            part = image[
                :,
                row.clamp(0, height - 1).to(torch.int64),
                column.clamp(0, width - 1).to(torch.int64),
            ]
            share = torch.where(inside & valid, row_weight * column_weight, 0)
            terms.append(part * share)
    return torch.stack(terms)


def roi_align(x, boxes, batches, size, samples, scale, mode, half_pixel):
    """
    Pools each box of the images to `size`, and returns the results. Samples between
    elements are interpolated.
    """
    shift = 0.5 if half_pixel else 0.0
    out = []
    for box, batch in zip(boxes.tolist(), batches.tolist(), strict=True):
        left, top, right, bottom = (side * scale - shift for side in box)
        extent = [bottom - top, right - left]
        if not half_pixel:
            extent = [max(side, 1.0) for side in extent]
        bins = [side / count for side, count in zip(extent, size, strict=True)]
        grid = [samples or math.ceil(side) for side in bins]
        points = []
        for begin, step, count, parts in zip(
            (top, left), bins, size, grid, strict=True
        ):
            inner = (torch.arange(parts, device=here()) + 0.5) * step / parts
            points.append(
                begin + torch.arange(count, device=here()).unsqueeze(1) * step + inner
            )
        y = points[0].reshape(size[0], 1, grid[0], 1).expand(*size, *grid).to(x.dtype)
        columns = points[1].reshape(1, size[1], 1, grid[1])
        columns = columns.expand(*size, *grid).to(x.dtype)
        terms = _bilinear(x[batch], y, columns, edge=True)
        if mode == "avg":
            out.append(terms.sum(0).mean((-2, -1)))
        else:
            out.append(terms.amax(0).amax((-2, -1)))
    return torch.stack(out) if out else x.new_zeros(0, x.shape[1], *size)


def deform_conv(
    x, weight, offset, bias, mask, strides, before, dilations, groups, offset_groups
):
    """
    Returns a deformable convolution: `offset` moves its samples, and `mask` weights
    them.
    """
    batch, channels = x.shape[:2]
    outputs, _, *kernel = weight.shape
    size = offset.shape[2:]
    taps = kernel[0] * kernel[1]
    moved = offset.reshape(batch, offset_groups, *kernel, 2, *size)
    starts = []
    for d in range(2):
        out = torch.arange(size[d], device=here()) * strides[d] - before[d]
        shape = [1, 1, 1, 1]
        shape[2 + d] = -1
        tap = torch.arange(kernel[d], device=here()) * dilations[d]
        tap_shape = [1, 1, 1, 1]
        tap_shape[d] = -1
        starts.append(out.reshape(shape) + tap.reshape(tap_shape))
    columns = []
    for b in range(batch):
        per_group = []
        for g, image in enumerate(x[b].chunk(offset_groups)):
            y = starts[0] + moved[b, g, :, :, 0]
            z = starts[1] + moved[b, g, :, :, 1]
            found = _bilinear(image, y, z, edge=False).sum(0)
            if mask is not None:
                found = found * mask[b].reshape(offset_groups, *kernel, *size)[g]
            per_group.append(found)
        columns.append(torch.cat(per_group))
    samples = torch.stack(columns).reshape(batch, groups, channels // groups * taps, -1)
    weights = weight.reshape(groups, outputs // groups, -1)
    out = (weights @ samples).reshape(batch, outputs, *size)
    return out if bias is None else out + bias.reshape(-1, 1, 1)
