"""Explain why side B is slower than side A (`labkit why A B`). The sides are two arms of a run, two runs or two points.

`selection` finds the sides and their points. `evidence` gathers what is known about a point: work, code, settings,
speed, loss, other programs. `candidates` makes the possible causes of it, and `conclusion` names one or none. `page`
shows that with the tables of `sections`; `arms` asks about every arm of a run.
"""

from labkit.analysis.why.arms import Arms, arm_sentences, explain_run, has_several
from labkit.analysis.why.page import Explanation, explain

__all__ = ["Arms", "Explanation", "arm_sentences", "explain", "explain_run", "has_several"]
