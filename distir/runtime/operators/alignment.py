"""The CTC loss, over all alignments of labels with a sequence, and its gradient."""

import torch


def ctc_loss(log_probs, targets, steps, labels, blank, zero_infinity):
    losses, _ = torch.ops.aten._ctc_loss(
        log_probs, targets, steps, labels, blank, zero_infinity
    )
    return torch.where(losses == torch.inf, 0, losses) if zero_infinity else losses


def ctc_loss_grad(dlosses, log_probs, targets, steps, labels, blank, zero_infinity):
    given = (log_probs, targets, steps, labels)
    found = torch.ops.aten._ctc_loss(*given, blank, zero_infinity)
    return torch.ops.aten._ctc_loss_backward(
        dlosses.contiguous(), *given, *found, blank, zero_infinity
    )
