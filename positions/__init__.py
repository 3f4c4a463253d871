"""Between the text of a position expression and the plan that attention follows.

grammar reads the text, catalogue finds and builds the pieces, scheme puts them into a model.
"""

from positions.catalogue import extended_frequencies

__all__ = ["extended_frequencies"]
