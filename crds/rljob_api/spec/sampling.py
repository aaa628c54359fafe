"""Sampling: how a token is drawn from the model's distribution."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from rljob_api.fields import Model

TopP = Annotated[float, Field(gt=0, le=1)]
TopK = Annotated[int, Field(ge=0, le=1_048_576)]
MinP = Annotated[float, Field(ge=0, le=1)]


class Sampling(Model):
    """The sampling of tokens. An absent field has the value of spec.algorithm."""

    temperature: Annotated[float | None, Field(ge=0, le=10)] = None
    """Divides the logits. 0: the most probable token, always."""
    top_p: TopP | None = None
    """Tokens are drawn from the smallest set of the most probable ones that has this probability."""
    top_k: TopK | None = None
    """Tokens are drawn from this many most probable ones. 0: from all."""
    min_p: MinP | None = None
    """Tokens are drawn from those with at least this share of the probability of the most probable one."""

    def over(self, base: Sampling) -> Sampling:
        """Return this with the absent fields of `base`."""
        given = self.model_dump(include=set(Sampling.model_fields), exclude_none=True)
        return Sampling.model_validate({**base.model_dump(exclude_none=True), **given})
