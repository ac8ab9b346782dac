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
        "mask_padding(unlabeled, everywhere)",
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
        "bpl calibrates on labeled images",
        METHOD,
        "fitted = self.calibration(batch.validation)",
        "fitted = self.calibration(batch.labeled)",
        "test_bpl:test_temperature_is_fitted_to_validation_crops_and_no_others",
    ),
    Mutation(
        "the cost of a threshold reaches no head",
        LATENT,
        '"threshold_cost": Term(cost)',
        '"threshold_cost": Term(cost.detach())',
        "test_methods:test_every_term_moves_some_weight",
        {"name": "bpl", **BOTH},
    ),
    Mutation(
        "the energy is not divided by the temperature",
        LATENT,
        "energy = loss / settings.temperature",
        "energy = loss",
        "test_bpl:test_free_energy_is_what_the_head_climbs",
    ),
    Mutation(
        "the head goes down the free energy",
        LATENT,
        'else {"threshold_cost": Term(cost)}',
        'else {"threshold_cost": Term(-cost)}',
        "test_bpl:test_head_alone_raises_the_free_energy",
        {"rule": "marginal", "family": "logit-normal"},
    ),
    Mutation(
        "a learned prior is worked out once",
        LATENT,
        "if self.kept is None or self.kept_state != state:",
        "if self.kept is None:",
        "test_bpl:test_prior_is_learned_where_it_is_asked_to",
        {"prior": "confidence"},
    ),
    Mutation(
        "the prior never learns",
        LATENT,
        "        self.prior.update(answers, generator)\n",
        "",
        "test_bpl:test_prior_is_learned_where_it_is_asked_to",
        {"prior": "labeled"},
    ),
    Mutation(
        "every rule has the threshold of binarize",
        LATENT,
        "selects=settings.rule in SELECTING_RULES,",
        "selects=False,",
        "test_bpl:test_exact_threshold_is_that_of_bayes_rule",
        {"rule": "select", "scope": "image"},
    ),
    Mutation(
        "the exact E-step forgets the prior",
        LATENT,
        "grid_posterior(dice, prior_log, temperature",
        "grid_posterior(dice, torch.zeros_like(prior_log), temperature",
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
    Mutation(
        "bpl calibrates a network in training mode",
        METHOD,
        "logits = as_in_prediction(self.network, held.image)",
        "logits = self.network(held.image).logits.detach()",
        "test_bpl:test_calibration_is_of_the_network_as_it_predicts",
    ),
    Mutation(
        "the prior learns from logits that are not calibrated",
        METHOD,
        "(self.calibrated(o.logits) for o in (on_labeled, on_unlabeled))",
        "(on_labeled.logits.detach(), self.calibrated(on_unlabeled.logits))",
        "test_bpl:test_prior_learns_from_calibrated_answers",
    ),
    Mutation(
        "shares are of all voxels, those beyond a scan too",
        METHOD,
        "total = inside.expand_as(pseudo.weight).sum().clamp(min=1)",
        "total = pseudo.weight.numel()",
        "test_bpl:test_shares_of_foreground_background_and_left_out_add_up",
    ),
    Mutation(
        "the exact E-step has no divergence",
        LATENT,
        "posterior.kl(Categorical(prior_log)).mean(), loss)",
        "torch.zeros_like(loss), loss)",
        "test_bpl:test_free_energy_of_the_exact_threshold_is_the_evidence_and_none_is_higher",
    ),
    Mutation(
        "divergences of voxels are added up",
        LATENT,
        "posterior.kl(references.prior).mean()",
        "posterior.kl(references.prior).sum()",
        "test_bpl:test_divergence_is_the_mean_over_thresholds",
        {"scope": "voxel"},
    ),
]
