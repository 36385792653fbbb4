"""Both papers, row by row: every figure, claim and equation, what checks it here, what came out, and the verdict."""
