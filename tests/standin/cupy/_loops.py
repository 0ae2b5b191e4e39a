"""Which dtypes CuPy's functions of elements have code for, as ``cupy.add.types`` tells them.

The first loop into whose dtypes the inputs can be cast safely is taken. E is bfloat16; float8 has none.
"""

import ml_dtypes
import numpy as np

_LOOPS = {
    "add subtract multiply minimum maximum fmin fmax": (
        "??->? bb->b BB->B hh->h HH->H ii->i II->I ll->l LL->L qq->q QQ->Q ee->e EE->E ff->f dd->d FF->F DD->D "
    ),
    "divide true_divide": ("qq->d qQ->d Qq->d QQ->d ee->e EE->E ff->f dd->d FF->F DD->D "),
    "floor_divide remainder mod fmod": (
        "bb->b BB->B hh->h HH->H ii->i II->I ll->l LL->L qq->q QQ->Q ee->e EE->E ff->f dd->d "
    ),
    "power": (
        "??->b bb->b BB->B hh->h HH->H ii->i II->I ll->l LL->L qq->q QQ->Q ee->e EE->E ff->f dd->d FF->F DD->D "
    ),
    "negative": (
        "?->? b->b B->B h->h H->H i->i I->I l->l L->L q->q Q->Q e->e E->E f->f d->d F->F D->D "
    ),
    "absolute abs": (
        "?->? b->b B->B h->h H->H i->i I->I l->l L->L q->q Q->Q e->e E->E f->f d->d F->f D->d "
    ),
    "bitwise_and bitwise_or bitwise_xor gcd lcm": (
        "??->? bb->b BB->B hh->h HH->H ii->i II->I ll->l LL->L qq->q QQ->Q "
    ),
    "invert": ("?->? b->b B->B h->h H->H i->i I->I l->l L->L q->q Q->Q "),
    "left_shift right_shift": ("bb->b BB->B hh->h HH->H ii->i II->I ll->l LL->L qq->q QQ->Q "),
    "logical_and logical_or": ("??->? qq->? QQ->? qQ->? Qq->? ee->? EE->? ff->? dd->? "),
    "logical_xor": (
        "??->? bb->? BB->? hh->? HH->? ii->? II->? ll->? LL->? qq->? QQ->? ee->? ff->? dd->? "
    ),
    "logical_not": ("?->? b->? B->? h->? H->? i->? I->? l->? L->? q->? Q->? e->? f->? d->? "),
    "equal not_equal less less_equal greater greater_equal": (
        "??->? qq->? QQ->? qQ->? Qq->? ee->? EE->? ff->? dd->? FF->? DD->? "
    ),
    "isnan isinf isfinite": ("e->? E->? f->? d->? F->? D->? "),
    "sign conjugate conj square": (
        "b->b B->B h->h H->H i->i I->I l->l L->L q->q Q->Q e->e E->E f->f d->d F->F D->D "
    ),
    "signbit": ("e->? E->? f->? d->? "),
    "sqrt exp log sin cos rint tan tanh exp2 log2 log1p expm1": ("e->e E->E f->f d->d F->F D->D "),
    "floor ceil trunc": (
        "?->? b->b B->B h->h H->H i->i I->I l->l L->L q->q Q->Q e->e E->E f->f d->d "
    ),
    "copysign hypot arctan2": ("ee->e EE->E ff->f dd->d FF->F DD->D "),
    "logaddexp": ("ee->e EE->E ff->f dd->d "),
}

TYPES = {name: loops.split() for names, loops in _LOOPS.items() for name in names.split()}
"""By function, in CuPy's order."""


def dtype(letter: str) -> np.dtype:
    """Return the dtype of a letter of a loop."""
    return np.dtype(ml_dtypes.bfloat16 if letter == "E" else letter)
