"""Batches of sequences of different lengths, one behind the other, with and without padding between
them. How long the result is depends on the lengths: the host reads them."""

from __future__ import annotations

import torch


def _starts(lengths: torch.Tensor) -> torch.Tensor:
    return torch.cumsum(lengths, 0) - lengths


def _places(lengths: torch.Tensor, starts: torch.Tensor, total: int) -> torch.Tensor:
    """Per element of the dense rows, where it lies behind `starts`."""
    at = torch.arange(total, device=lengths.device)
    row = torch.searchsorted(torch.cumsum(lengths, 0), at, right=True)
    return starts[row] + at - _starts(lengths)[row]


def _check(op: str, values: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    if lengths.dim() != 1 or lengths.is_floating_point() or values.dim() < 1:
        raise ValueError(
            f"[{op}] expected values[N, ...] and integer lengths[B], got {list(values.shape)} and "
            f"{list(lengths.shape)} {lengths.dtype}"
        )
    return lengths.to(torch.int64)


def _refuse_negative(op: str, count: int, lengths: torch.Tensor) -> None:
    if count:
        raise ValueError(f"[{op}] lengths must not be negative, got {lengths.tolist()}")


def align_jagged_to_multiple(
    values: torch.Tensor, lengths: torch.Tensor, multiple: int, padding_value: float = 0.0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Sequences values[N, ...] of these lengths[B], each padded to a multiple of a number; and
    their new lengths. With a gradient. The host reads the lengths at each call, so they are checked
    at each: none is negative, and they add up to N.

    >>> import torch
    >>> x = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0], device="tpu")
    >>> lengths = torch.tensor([3, 2], device="tpu")
    >>> padded, aligned = torch.tpu.ops.align_jagged_to_multiple(x, lengths, 2)
    >>> padded
    tensor([1., 2., 3., 0., 4., 5.], device='tpu:0')
    """
    if multiple < 1:
        raise ValueError(f"[align_jagged_to_multiple] multiple must be positive, got {multiple}")
    known = _check("align_jagged_to_multiple", values, lengths)
    aligned = (known + multiple - 1) // multiple * multiple
    total, room, negative = torch.stack([known.sum(), aligned.sum(), (known < 0).sum()]).tolist()
    _refuse_negative("align_jagged_to_multiple", negative, known)
    if total != values.shape[0]:
        raise ValueError(
            f"[align_jagged_to_multiple] the lengths add up to {total}, but there are "
            f"{values.shape[0]} values"
        )
    out = values.new_full((room, *values.shape[1:]), padding_value)
    if total:
        out = out.index_copy(0, _places(known, _starts(aligned), total), values)
    return out, aligned.to(lengths.dtype)


def strip_jagged_padding(
    values: torch.Tensor, lengths: torch.Tensor, padded_lengths: torch.Tensor
) -> torch.Tensor:
    """The reverse: of each sequence of padded_lengths[B] the first lengths[B] values. With a
    gradient. The host reads the lengths at each call, so they are checked at each: none is negative
    or beyond its padded length, and the padded lengths add up to N.

    >>> import torch
    >>> x = torch.tensor([1.0, 2.0, 3.0, 0.0, 4.0, 5.0], device="tpu")
    >>> lengths, padded = torch.tensor([[3, 2], [4, 2]], device="tpu")
    >>> torch.tpu.ops.strip_jagged_padding(x, lengths, padded)
    tensor([1., 2., 3., 4., 5.], device='tpu:0')
    """
    known = _check("strip_jagged_padding", values, lengths)
    padded = _check("strip_jagged_padding", values, padded_lengths)
    if known.shape != padded.shape:
        raise ValueError(
            f"[strip_jagged_padding] expected a padded length for each length, got "
            f"{padded.shape[0]} padded lengths and {known.shape[0]} lengths"
        )
    total, room, negative, beyond = torch.stack(
        [known.sum(), padded.sum(), (known < 0).sum(), (known > padded).sum()]
    ).tolist()
    _refuse_negative("strip_jagged_padding", negative, known)
    if beyond:
        raise ValueError(
            f"[strip_jagged_padding] lengths must not be beyond the padded lengths, got "
            f"{known.tolist()} of {padded.tolist()}"
        )
    if room != values.shape[0]:
        raise ValueError(
            f"[strip_jagged_padding] the padded lengths add up to {room}, but there are "
            f"{values.shape[0]} values"
        )
    if not total:
        return values[:0]
    return values.index_select(0, _places(known, _starts(padded), total))
