"""Reproductions of two papers, row by row: each figure, claim and equation, what checks it here, and what came out.

`python -m reproductions` runs them; arXiv:2405.15926 is on attention paths, arXiv:2212.14852 on exchangeable tokens.
"""
