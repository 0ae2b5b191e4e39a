"""Which dtypes CuPy's functions of elements have code for, as ``cupy.add.types`` tells them.

The first loop into whose dtypes the inputs can be cast safely is taken. E is bfloat16; float8 has none.
"""

import ml_dtypes
import numpy as np

_REALS = "bb->b BB->B hh->h HH->H ii->i II->I ll->l LL->L qq->q QQ->Q ee->e EE->E ff->f dd->d"
_ONES = "b->b B->B h->h H->H i->i I->I l->l L->L q->q Q->Q e->e E->E f->f d->d F->F D->D"
_LOOPS = {
    "add subtract multiply minimum maximum": f"??->? {_REALS} FF->F DD->D",
    "true_divide": "qq->d qQ->d Qq->d QQ->d ee->e EE->E ff->f dd->d FF->F DD->D",
    "floor_divide": _REALS,
    "negative": f"?->? {_ONES}",
    "bitwise_and bitwise_or bitwise_xor": (
        "??->? bb->b BB->B hh->h HH->H ii->i II->I ll->l LL->L qq->q QQ->Q"
    ),
    "logical_and logical_or": "??->? qq->? QQ->? qQ->? Qq->? ee->? EE->? ff->? dd->?",
    "logical_xor": (
        "??->? bb->? BB->? hh->? HH->? ii->? II->? ll->? LL->? qq->? QQ->? ee->? ff->? dd->?"
    ),
    "equal not_equal less less_equal greater greater_equal": (
        "??->? qq->? QQ->? qQ->? Qq->? ee->? EE->? ff->? dd->? FF->? DD->?"
    ),
    "isfinite": "e->? E->? f->? d->? F->? D->?",
    "square": _ONES,
    "exp log": "e->e E->E f->f d->d F->F D->D",
    "hypot": "ee->e EE->E ff->f dd->d FF->F DD->D",
}

TYPES = {name: loops.split() for names, loops in _LOOPS.items() for name in names.split()}
"""By function, in CuPy's order."""


def dtype(letter):
    """Return the dtype of a letter of a loop."""
    return np.dtype(ml_dtypes.bfloat16 if letter == "E" else letter)
