"""Whether the passages that were found speak of what was asked."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from epicrag.errors import EpicragError
from epicrag.index.words import query_words, words_of
from epicrag.types import Hit, Relevance

if TYPE_CHECKING:
    from epicrag.index.catalog import Catalog
    from epicrag.index.embed import Embedder
    from epicrag.index.vectors import VectorIndex
def by_score(hits,m): 
    s=max((h.score for h in hits),default=-1.0)
    return Relevance(s>=m,s,m,"min_score")
def judged(*a): 
    return Relevance(True,1.0,0.5,"auto")
