"""Claims that the paper's tables are about (Sec. 4.2 to 4.4 and Appendix C)."""

from __future__ import annotations

from osiris.claims.claims import Claim
from osiris.claims.evidence import both, extreme, not_below, opposite
from osiris.claims.judges import (
    OSIRIS,
    TASK_AWARE,
    ablation_best,
    cassle_plasticity,
    consolidation_follows_accuracy,
    every,
    grouped,
    improves_on_ft,
    lowest_forgetting,
    lowest_of_ablations,
    more,
    more_forgetting_than,
    named,
    some_gain_above_ft,
    top_two,
    within,
)

FIVE, TWENTY = "split-cifar100-5", "split-cifar100-20"
STRUCTURED, TINY = "structured-cifar100", "structured-tiny-imagenet"
RANDOM = (FIVE, TWENTY)

TABLES: list[Claim] = [
    Claim(
        "best-accuracy",
        "abstract, Tables 2 and 3",
        "osiris-d has the highest overall accuracy A of all continual methods.",
        lambda e: extreme(e, ["osiris-d"], "A"),
    ),
    Claim(
        "best-consolidation",
        "Sec. 4.2 and 4.4",
        "Osiris (either variant) has the highest consolidation C.",
        lambda e: extreme(e, OSIRIS, "C"),
    ),
    Claim(
        "best-transfer",
        "Sec. 4.2",
        "Osiris (either variant) has the highest forward transfer T.",
        lambda e: extreme(e, OSIRIS, "T"),
    ),
    Claim(
        "ft-near-offline",
        "Sec. 4.2",
        "ft ends within about two points of offline training on five random tasks.",
        within("ft", "offline", "A", 2.0),
        (FIVE,),
        (),
    ),
    Claim(
        "osiris-matches-offline",
        "Sec. 4.2",
        "osiris-d closes the gap to offline training on five random tasks, in A and in C.",
        lambda e: both(
            not_below(e, named(e, "osiris-d", "A"), named(e, "offline", "A")),
            not_below(e, named(e, "osiris-d", "C"), named(e, "offline", "C")),
        ),
        (FIVE,),
        (),
    ),
    Claim(
        "replay-gains",
        "Sec. 4.2",
        "osiris-r has a higher knowledge gain than osiris-d.",
        more("osiris-r", "osiris-d", "K"),
        RANDOM,
    ),
    Claim(
        "distillation-remembers",
        "Sec. 4.2 and 4.4",
        "osiris-d forgets less than osiris-r.",
        more("osiris-r", "osiris-d", "F"),
    ),
    Claim("cassle-remembers", "Sec. 4.2", "cassle forgets less than ft.", more("ft", "cassle", "F"), RANDOM),
    Claim(
        "cassle-gains-little",
        "Sec. 4.2",
        "cassle has a lower knowledge gain than every method but ewc.",
        cassle_plasticity,
        RANDOM,
    ),
    Claim(
        "pocon-gains",
        "Sec. 4.2",
        "pocon has the highest knowledge gain of the distillation methods other than osiris-d.",
        lambda e: extreme(e, ["pocon"], "K", among=["pocon", "cassle", "ewc"], fewest=2),
        RANDOM,
    ),
    Claim(
        "lump-twenty", "Sec. 4.2", "lump improves on ft in a sequence of 20 tasks.", more("lump", "ft", "A"), (TWENTY,)
    ),
    Claim(
        "lump-five",
        "Sec. 4.2",
        "lump does not improve on ft in a sequence of 5 tasks.",
        lambda e: opposite(more("lump", "ft", "A")(e)),
        (FIVE,),
        (),
    ),
    Claim(
        "ft-no-bound",
        "Sec. 4.2",
        "The knowledge gain of ft is not an upper bound: another method gains more.",
        some_gain_above_ft,
        RANDOM,
    ),
    Claim(
        "contrast-gains",
        "Sec. 4.2",
        "er+ or er++, which contrast the task with the memory, gain the most knowledge.",
        lambda e: extreme(e, ["er+", "er++"], "K"),
        RANDOM,
    ),
    Claim(
        "contrast-over-er",
        "Sec. 4.2",
        "er+ and er++ both gain more knowledge than er.",
        every([more("er+", "er", "K"), more("er++", "er", "K")]),
        RANDOM,
    ),
    Claim(
        "lowest-forgetting", "Sec. 4.2", "The method that forgets least uses distillation.", lowest_forgetting, RANDOM
    ),
    Claim(
        "replay-plasticity",
        "Sec. 4.2",
        "Replay methods gain more knowledge than distillation methods.",
        grouped("K", "replay", "distillation"),
        RANDOM,
    ),
    Claim(
        "structured-forgetting",
        "Sec. 4.3",
        "On structured CIFAR-100 methods forget more than on random sequences of it.",
        None,
        (STRUCTURED,),
        (),
        across=more_forgetting_than((STRUCTURED, FIVE, TWENTY)),
    ),
    Claim(
        "structured-over-ft",
        "Sec. 4.3",
        "On a structured sequence every method improves on ft.",
        improves_on_ft,
        (STRUCTURED,),
    ),
    Claim(
        "structured-osiris",
        "Sec. 4.3",
        "On a structured sequence both variants of Osiris lead in A, K, C and T.",
        top_two(["A", "K", "C", "T"]),
        (STRUCTURED,),
    ),
    Claim(
        "environments-ft-gain",
        "Sec. 4.3",
        "On a sequence of environments ft has the highest knowledge gain.",
        lambda e: extreme(e, ["ft"], "K"),
        (TINY,),
    ),
    Claim(
        "environments-osiris",
        "Sec. 4.3",
        "On a sequence of environments Osiris leads the continual methods other than ft in K, C and T.",
        lambda e: both(
            *(
                extreme(e, OSIRIS, metric, among=[m for m in e.methods(metric) if m != "ft"], fewest=2)
                for metric in ("K", "C", "T")
            )
        ),
        (TINY,),
    ),
    Claim(
        "above-offline",
        "Sec. 4.3",
        "On a sequence of environments osiris-d ends above offline training.",
        more("osiris-d", "offline", "A"),
        (TINY,),
    ),
    Claim(
        "space-gains",
        "Table 4",
        "Without an isolated space for the current task, knowledge gain falls.",
        more("osiris-d", "osiris-d/shared-space", "K"),
        (TWENTY,),
    ),
    Claim(
        "cross-consolidates",
        "Table 4",
        "Without L_cross, consolidation C is the lowest of all ablations.",
        lowest_of_ablations("osiris-d/no-cross", "C"),
        (TWENTY,),
    ),
    Claim(
        "cross-gains",
        "Table 4",
        "Without L_cross, knowledge gain falls.",
        more("osiris-d", "osiris-d/no-cross", "K"),
        (TWENTY,),
    ),
    Claim(
        "past-costs-gain",
        "Table 4",
        "Without L_past, knowledge gain is the highest of all ablations.",
        every(
            [
                more("osiris-d/no-past", other, "K")
                for other in ("osiris-d", "osiris-d/shared-space", "osiris-d/no-cross")
            ]
        ),
        (TWENTY,),
    ),
    Claim(
        "past-remembers",
        "Table 4",
        "Without L_past, forgetting rises.",
        more("osiris-d/no-past", "osiris-d", "F"),
        (TWENTY,),
    ),
    Claim(
        "whole-is-best",
        "Table 4",
        "With all its parts osiris-d is the best in A, F, C and T.",
        ablation_best(["A", "F", "C", "T"]),
        (TWENTY,),
    ),
    Claim(
        "task-aware-best",
        "Appendix C",
        "osiris-d has the highest A also when the task is known.",
        lambda e: extreme(e, ["osiris-d"], "A", protocol=TASK_AWARE),
    ),
    Claim(
        "task-aware-consolidation",
        "Appendix C",
        "Consolidation goes along with accuracy even when the task is known.",
        consolidation_follows_accuracy,
    ),
    Claim(
        "task-aware-cross",
        "Table 8",
        "L_cross helps even within a task: without it the task-aware A falls.",
        more("osiris-d", "osiris-d/no-cross", "A", TASK_AWARE),
        (TWENTY,),
    ),
    Claim(
        "lump-alpha",
        "Appendix B",
        "lump with alpha = 0.4 does better than with alpha = 0.1 on CIFAR-100.",
        more("lump", "lump[alpha=0.1]", "A"),
        (*RANDOM, STRUCTURED),
        (),
    ),
]
