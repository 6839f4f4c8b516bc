"""The names of workflows, effects and queues, and the keys that are derived from them. Pure."""

import hashlib
import re
from typing import NamedTuple

MAX_EFFECTS = 10_000
"""The most effects of one workflow."""
_NAME = re.compile("[^\x00-\x1f\x7f-\x9f:\ud800-\udfff]{1,100}")


def check_name(argument: str, name: object) -> str:
    """Return a valid name. Raises ValueError with the name of the argument."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ValueError(f"{argument} must be 1 to 100 characters, without colons and control characters")
    return name


def effect_key(name: str, earlier: int) -> str:
    """Return the key of an effect, if `earlier` effects of the workflow have its name."""
    return f"{name}:{earlier}" if earlier else name


def name_of(key: str) -> str:
    """Return the name of the effect with a key."""
    return key.partition(":")[0]


class Identity(NamedTuple):
    """What distinguishes an execution from all others. The id of a workflow can be used again after its retention."""

    tenant: str
    workflow_id: str
    started_at: str

    def derive(self, purpose: str) -> str:
        """Return 32 hex digits that are the same in each replay, and differ by purpose."""
        return hashlib.sha256("\0".join((*self, purpose)).encode(errors="replace")).hexdigest()[:32]
