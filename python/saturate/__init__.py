"""saturate for Python: a loader that reads, decodes, crops and augments on C++ threads, without Python's lock.

    import saturate

    loader = saturate.Loader("folder:photos/train", batch=64, size=224, crop="random_resized",
                             to="torch")
    for epoch in range(90):
        for images, labels in loader:
            ...

And the time of any training loop by phase: saturate.watch(), and a page of it: report(). Why it is slow:
saturate.diagnose() and tune().
"""

from ._core import Error, __version__
from .diagnosing import Cause, Diagnosis, diagnose
from .loader import Loader
from .reporting import report
from .tuning import Tuning, tune
from .watching import Watch, watch

__all__ = ["Cause", "Diagnosis", "Error", "Loader", "Tuning", "Watch", "__version__", "diagnose", "report", "tune",
           "watch"]
