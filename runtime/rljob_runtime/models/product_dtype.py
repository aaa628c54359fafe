"""Product dtype: the number format in which a device multiplies weights of a published format.

A processor for which oneDNN has no bfloat16 products (one with AVX2 only, for example) emulates them: eight times
slower than float32 where one factor is transposed, as in a forward pass, and fifty times and more where none is, as in
a backward pass. Such a processor computes in float32. The weights stay rounded to the published format, so trainer and
engines have the same model.
"""

from __future__ import annotations

import logging
from functools import cache

logger = logging.getLogger(__name__)


def product_dtype(published: str, device: str) -> str:
    """Return the format of matrix products on `device`, with weights of this format.

    >>> product_dtype("float32", "cpu"), product_dtype("bfloat16", "cuda:0")
    ('float32', 'bfloat16')
    """
    if published != "bfloat16" or not device.startswith("cpu") or multiplies_bfloat16():
        return published
    return "float32"


@cache
def multiplies_bfloat16() -> bool:
    """Return whether oneDNN has bfloat16 products for this machine's processor; False for a torch without oneDNN."""
    import torch

    supported = torch.backends.mkldnn.is_available() and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    if not supported:
        logger.info("oneDNN has no bfloat16 products for this processor: bfloat16 weights compute in float32")
    return supported
