"""Breaks of `bpl` and of its latent threshold."""

from __future__ import annotations

from mutations import BOTH, Mutation

METHOD = "methods/bpl.py"
LATENT = "methods/latent_threshold.py"
EXACT = "threshold/exact.py"

BPL = [
    Mutation(
        "bpl lets the M-step move the threshold",
        METHOD,
        "PseudoLabels(inferred.target.detach(), inferred.weight.detach())",
        "PseudoLabels(inferred.target, inferred.weight)",
        "test_bpl:test_pseudo_labels_are_facts_to_the_network",
    ),
    Mutation(
        "bpl does not ramp alpha",
        METHOD,
        "alpha = alpha_at(self.settings, progress)",
        "alpha = self.settings.alpha",
        "test_bpl:test_weight_of_pseudo_labels_rises_in_a_straight_line",
    ),
    Mutation(
        "bpl counts what lies beyond a scan",
        METHOD,
        "counted(unlabeled, everywhere)",
        "everywhere",
        "test_bpl:test_voxels_that_do_not_count_are_left_out",
        {"rule": "marginal"},
    ),
    Mutation(
        "bpl labels by logits that are not calibrated",
        METHOD,
        "return logits if self.temperature is None else self.temperature(logits)",
        "return logits",
        "test_bpl:test_temperature_comes_before_the_threshold",
    ),
    Mutation(
        "bpl drops the term of the threshold",
        METHOD,
        "            **inferred.terms,\n",
        "",
        "test_methods:test_every_weight_is_moved_by_some_term",
        {"name": "bpl", **BOTH},
    ),
    Mutation(
        "bpl calibrates on labelled images",
        METHOD,
        "fitted = self.calibration(batch.held)",
        "fitted = self.calibration(batch.labeled)",
        "test_bpl:test_temperature_is_fitted_to_validation_crops_and_no_others",
    ),
    Mutation(
        "the cost of a threshold reaches no head",
        LATENT,
        '"threshold": Term(cost)',
        '"threshold": Term(cost.detach())',
        "test_methods:test_every_term_moves_some_weight",
        {"name": "bpl", **BOTH},
    ),
    Mutation(
        "the energy is not divided by the temperature",
        LATENT,
        "dice_loss(logits, pseudo.target, weight) / settings.temperature",
        "dice_loss(logits, pseudo.target, weight)",
        "test_bpl:test_free_energy_is_what_the_head_climbs",
    ),
    Mutation(
        "the head goes down the free energy",
        LATENT,
        'else {"threshold": Term(cost)}',
        'else {"threshold": Term(-cost)}',
        "test_bpl:test_head_alone_raises_the_free_energy",
        {"rule": "marginal", "family": "logit-normal"},
    ),
    Mutation(
        "a learnt prior is worked out once",
        LATENT,
        "self.kept = found if isinstance(self.prior, FixedPrior) else None",
        "self.kept = found",
        "test_bpl:test_prior_is_learnt_where_it_is_asked_to",
        {"prior": "confidence"},
    ),
    Mutation(
        "the prior never learns",
        LATENT,
        "        self.prior.update(answers, generator)\n",
        "",
        "test_bpl:test_prior_is_learnt_where_it_is_asked_to",
        {"prior": "labeled"},
    ),
    Mutation(
        "every rule has the threshold of binarize",
        LATENT,
        "selects=self.settings.rule in SELECTING,",
        "selects=False,",
        "test_bpl:test_exact_threshold_is_that_of_bayes_rule",
        {"rule": "select", "scope": "image"},
    ),
    Mutation(
        "the exact E-step forgets the prior",
        LATENT,
        "            references.log_mass,\n",
        "            torch.zeros_like(references.log_mass),\n",
        "test_bpl:test_exact_threshold_is_that_of_bayes_rule",
        {"rule": "marginal", "scope": "image"},
    ),
    Mutation(
        "a selecting threshold counts what it leaves out",
        EXACT,
        "torch.where(found, mass + weight, mass)",
        "(mass + weight)",
        "test_exact:test_dice_of_every_threshold_agrees_with_brute_force",
        {"scope": "image", "shape": (2, 1, 9, 7), "selects": True},
    ),
]
