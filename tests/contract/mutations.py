"""Ways to break a method, each with the test that notices.

`before` stands exactly once in the file, `after` takes its place, and `check` must then fail. The
same list is in docs/testing.md.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Mutation:
    title: str
    file: str  # under src/segpl
    before: str
    after: str
    check: str  # module and function of a test
    arguments: dict[str, Any] = field(default_factory=dict)

    @property
    def test(self) -> str:
        return self.check.split(":")[1]


BOTH = {"dims": 2, "classes": 2}

SEGPL = [
    Mutation(
        "segpl drops the pseudo term",
        "methods/segpl.py",
        '"pseudo": Term(self.loss(on_unlabeled.logits, pseudo.target, pseudo.weight), alpha),',
        "",
        "test_methods:test_other_terms_see_unlabeled_images_and_labeled_ones_only_where_declared",
        {"name": "segpl", **BOTH},
    ),
    Mutation(
        "segpl detaches the supervised loss",
        "methods/segpl.py",
        "Term(supervised_loss(on_labeled.logits, batch",
        "Term(supervised_loss(on_labeled.logits.detach(), batch",
        "test_methods:test_every_term_moves_some_weight",
        {"name": "segpl", **BOTH},
    ),
    Mutation(
        "segpl detaches the pseudo loss",
        "methods/segpl.py",
        "Term(self.loss(on_unlabeled.logits, pseudo",
        "Term(self.loss(on_unlabeled.logits.detach(), pseudo",
        "test_methods:test_every_term_moves_some_weight",
        {"name": "segpl", **BOTH},
    ),
    Mutation(
        "segpl labels the labelled images",
        "methods/segpl.py",
        "pseudo = self.label(on_unlabeled, batch.generator)",
        "pseudo = self.label(on_labeled, batch.generator)",
        "test_segpl:test_pseudo_term_is_the_loss_against_the_own_thresholded_prediction",
    ),
    Mutation(
        "segpl does not ramp alpha",
        "methods/segpl.py",
        "self.settings.alpha * linear_ramp(",
        "self.settings.alpha * (lambda *_, **__: 1.0)(",
        "test_segpl:test_weight_of_pseudo_labels_rises_in_a_straight_line",
        {"name": "segpl", "progress": 0.4, "weight": 0.2},
    ),
    Mutation(
        "segpl counts what lies beyond a scan",
        "methods/segpl.py",
        "weight=counted(unlabeled, pseudo.weight)",
        "weight=pseudo.weight",
        "test_methods:test_predictions_beyond_an_unlabelled_scan_change_nothing",
        {"name": "segpl", "loss": "dice", **BOTH},
    ),
    Mutation(
        "halves of the batch swapped after the common pass",
        "methods/base.py",
        "return NetOutput(*(p[:first] for p in parts)), NetOutput(*(p[first:] for p in parts))",
        "return NetOutput(*(p[first:] for p in parts)), NetOutput(*(p[:first] for p in parts))",
        "test_methods:test_supervised_term_sees_labeled_images_only",
        {"name": "segpl", **BOTH},
    ),
    Mutation(
        "pseudo-labels keep their gradient",
        "threshold/rules.py",
        "target = (probability > threshold).to(probability.dtype)",
        "target = probability",
        "test_methods:test_pseudo_labels_carry_no_gradient_and_lie_from_0_to_1",
        {"name": "segpl", **BOTH},
    ),
    Mutation(
        "foreground below the threshold",
        "threshold/rules.py",
        "(probability > threshold)",
        "(probability < threshold)",
        "test_segpl:test_pseudo_term_is_the_loss_against_the_own_thresholded_prediction",
    ),
    Mutation(
        "segpl-vi drops the KL",
        "methods/segpl_vi.py",
        '        pseudo.terms["kl"] = Term(divergence, self.settings.kl_weight)\n',
        "",
        "test_methods:test_every_weight_is_moved_by_some_term",
        {"name": "segpl-vi", **BOTH},
    ),
    Mutation(
        "segpl-vi's head reads detached features",
        "methods/segpl_vi.py",
        "self.head(output.features)",
        "self.head(output.features.detach())",
        "test_segpl:test_kl_moves_the_head_and_through_the_features_the_network",
        {"dims": 2},
    ),
    Mutation(
        "segpl-vi uses the mean of the threshold, not a draw",
        "methods/segpl_vi.py",
        "posterior.sample(generator).detach()",
        "posterior.mean.detach()",
        "test_segpl:test_threshold_is_drawn_from_the_generator_of_the_batch",
    ),
    Mutation(
        "segpl-vi does not use the drawn threshold",
        "methods/segpl_vi.py",
        "binarize(output.logits.sigmoid(), threshold)",
        "binarize(output.logits.sigmoid(), 0.5)",
        "test_segpl:test_pseudo_labels_follow_the_drawn_threshold",
    ),
    Mutation(
        "KL with its sign turned",
        "methods/segpl_vi.py",
        "divergence = posterior.kl(",
        "divergence = -posterior.kl(",
        "test_segpl:test_kl_is_that_of_the_head_on_unlabeled_features_against_the_prior",
    ),
    Mutation(
        "supervised detaches its loss",
        "methods/supervised.py",
        "supervised_loss(output.logits, batch",
        "supervised_loss(output.logits.detach(), batch",
        "test_methods:test_every_term_moves_some_weight",
        {"name": "supervised", **BOTH},
    ),
]

MUTATIONS = [*SEGPL]
