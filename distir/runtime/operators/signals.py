"""
Fourier transforms of tensors whose last dimension holds the real and imaginary parts.
"""

import torch

from ..devices import here


def _complex(x):
    """
    Returns a complex tensor from real and imaginary part, or a real tensor if there is
    no imaginary part. The precision is at least single.
    """
    x = x.to(torch.promote_types(x.dtype, torch.float32))
    if x.shape[-1] == 1:
        return x.squeeze(-1)
    return torch.complex(x[..., 0], x[..., 1])


def dft(x, length, axis, inverse=False, onesided=False):
    axis %= x.dim()
    signal = _complex(x)
    if inverse and onesided:
        return torch.fft.irfft(signal, length, axis).unsqueeze(-1).to(x.dtype)
    if inverse:
        out = torch.fft.ifft(signal, length, axis)
    else:
        out = torch.fft.fft(signal, length, axis)
        if onesided:
            out = out.narrow(axis, 0, out.shape[axis] // 2 + 1)
    return torch.view_as_real(out).to(x.dtype)


def stft(x, step, window, length=None, onesided=True):
    """
    Returns the Fourier transforms of windowed frames of `x` [batch, samples, parts].
    Frames start every `step` samples.
    """
    signal = _complex(x if x.dim() == 3 else x.unsqueeze(-1))
    length = len(window) if length is None else length
    frames = signal.unfold(1, length, step)
    if window is not None:
        frames = frames * window
    out = torch.fft.fft(frames, dim=-1)
    if onesided:
        out = out[..., : length // 2 + 1]
    return torch.view_as_real(out).to(x.dtype)


def mel_weights(bins, length, rate, low, high):
    """
    Returns the triangular weights [frequencies, bins] that turn a spectrum of `length`
    samples into `bins` mel bins, from frequency `low` to `high` at sampling rate
    `rate`.
    """
    to_mel = lambda f: 2595 * torch.log10(1 + torch.tensor(f, device=here()) / 700)  # noqa: E731
    count = length // 2 + 1
    first, last = to_mel(float(low)), to_mel(float(high))
    edges = first + torch.arange(bins + 2, device=here()) * (
        (last - first) / (bins + 2)
    )
    edges = 700 * (10 ** (edges / 2595) - 1)
    edges = torch.floor((length + 1) * edges / rate).to(torch.int64).tolist()
    out = torch.zeros(count, bins, device=here())
    for i in range(bins):
        lower, center, upper = edges[i : i + 3]
        if center == lower:
            out[center, i] = 1
        for j in range(lower, center + 1):
            if center > lower:
                out[j, i] = (j - lower) / (center - lower)
        for j in range(center, upper):
            if upper > center:
                out[j, i] = (upper - j) / (upper - center)
    return out
