"""Mutants of rljob_runtime.models."""

from hack.mutants import Mutant

PRODUCT_DTYPE = "tests/unit/models/test_product_dtype.py"

MUTANTS = (
    Mutant(
        name="a processor emulates products that it does not have",
        target="rljob_runtime.models.product_dtype:product_dtype",
        before="multiplies_bfloat16()",
        after="True",
        tests=(f"{PRODUCT_DTYPE}::test_the_format_of_products",),
        canary=True,
    ),
    Mutant(
        name="a torch without oneDNN is asked for its products",
        target="rljob_runtime.models.product_dtype:multiplies_bfloat16",
        before="torch.backends.mkldnn.is_available() and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())",
        after="bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())",
        tests=(f"{PRODUCT_DTYPE}::test_a_torch_without_onednn_has_no_bfloat16_products",),
    ),
    Mutant(
        name="an accelerator computes as its host does",
        target="rljob_runtime.models.product_dtype:product_dtype",
        before='not device.startswith("cpu")',
        after="False",
        tests=(f"{PRODUCT_DTYPE}::test_the_format_of_products",),
    ),
)
