"""Attention that the posterior prefers, by the theory: evidence of queries and keys, its maximum, and comparisons."""

from bayesattn.questions.preferred_attention.comparison import AttentionComparison, compare_attention
from bayesattn.questions.preferred_attention.evidence import ORDERS, ConditionalEvidence, conditional_evidence
from bayesattn.questions.preferred_attention.most_probable import MostProbableAttention, most_probable_attention

__all__ = [
    "ORDERS",
    "AttentionComparison",
    "ConditionalEvidence",
    "MostProbableAttention",
    "compare_attention",
    "conditional_evidence",
    "most_probable_attention",
]
