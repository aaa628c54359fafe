"""Renderers: the chat templates that the package `renderers` knows, by its own names."""

from __future__ import annotations

from enum import StrEnum


class ChatTemplateRenderer(StrEnum):
    """The template of a family of models, as code that writes conversations of several turns."""

    DEEPSEEK_R1 = "deepseek-r1"
    DEEPSEEK_V3 = "deepseek-v3"
    DEEPSEEK_V4 = "deepseek-v4"
    GEMMA_4 = "gemma4"
    GLM_4_5 = "glm-4.5"
    GLM_5 = "glm-5"
    GLM_5_1 = "glm-5.1"
    GLM_5_3 = "glm-5.3"
    GPT_OSS = "gpt-oss"
    HY_3 = "hy3"
    INKLING = "inkling"
    KIMI_K2 = "kimi-k2"
    KIMI_K2_5 = "kimi-k2.5"
    LAGUNA_M_1 = "laguna-m.1"
    LAGUNA_S_2_1 = "laguna-s-2.1"
    LAGUNA_XS_2 = "laguna-xs.2"
    LAGUNA_XS_2_1 = "laguna-xs-2.1"
    LLAMA_3 = "llama-3"
    MINIMAX_M2 = "minimax-m2"
    NEMOTRON_3 = "nemotron-3"
    NEMOTRON_3_ULTRA = "nemotron-3-ultra"
    NEMOTRON_3_5 = "nemotron-3.5"
    PRIME_QWEN_3 = "prime-qwen3"
    QWEN_3 = "qwen3"
    QWEN_3_VL = "qwen3-vl"
    QWEN_3_5 = "qwen3.5"
    QWEN_3_6 = "qwen3.6"
    QWEN_3_8 = "qwen3.8"
