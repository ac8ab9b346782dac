"""Breaks of `bpl-mix` and of its boxes."""

from __future__ import annotations

from mutations import BOTH, Mutation

METHOD = "methods/bpl_mix.py"
MIXING = "views/mixing.py"
TESTS = "test_bpl_mix"
BOXES = "test_bpl_mix_boxes"

BPL_MIX = [
    Mutation(
        "bpl-mix labels by the student",
        METHOD,
        "forward_together(self.teacher, labeled, unlabeled)",
        "forward_together(self.network, labeled, unlabeled)",
        f"{TESTS}:test_teacher_labels_the_plain_crop_and_the_student_sees_another",
    ),
    Mutation(
        "bpl-mix learns from the plain crops",
        METHOD,
        "return Marked(strong, moved.target, moved.weight)",
        "return Marked(unlabeled.image, moved.target, moved.weight)",
        f"{TESTS}:test_without_mixing_the_student_sees_the_strong_views_with_their_labels",
        {"geometry": False},
    ),
    Mutation(
        "bpl-mix leaves the labels where they were",
        METHOD,
        "return Marked(strong, moved.target, moved.weight)",
        "return Marked(strong, pseudo.target, pseudo.weight)",
        f"{TESTS}:test_without_mixing_the_student_sees_the_strong_views_with_their_labels",
        {"geometry": True},
    ),
    Mutation(
        "a pasted box leaves its labels behind",
        MIXING,
        "torch.where(mask, source.target, self.target)",
        "self.target",
        f"{TESTS}:test_every_voxel_has_label_and_weight_of_the_crop_that_it_is_from",
        {"loss": "cross-entropy", "seed": 0},
    ),
    Mutation(
        "a pasted box leaves its weights behind",
        MIXING,
        "torch.where(mask, source.weight, self.weight)",
        "self.weight",
        f"{TESTS}:test_every_voxel_has_label_and_weight_of_the_crop_that_it_is_from",
        {"loss": "cross-entropy", "seed": 0},
    ),
    Mutation(
        "bpl-mix pastes the box of another crop than it drew",
        METHOD,
        "given.joined(made).chosen(sources)",
        "made.joined(given).chosen(sources)",
        f"{BOXES}:test_labelled_boxes_go_into_unlabelled_crops_and_the_reverse",
    ),
    Mutation(
        "bpl-mix mixes a crop with itself",
        METHOD,
        "source = labeled + other + (other >= index)",
        "source = labeled + other",
        f"{BOXES}:test_without_pasting_no_labelled_voxel_is_mixed_in",
    ),
    Mutation(
        "bpl-mix pastes in one direction only",
        METHOD,
        "return views.joined(given.pasted(made.chosen(partners), mask_of(boxes, sides, device)))",
        "return views",
        f"{BOXES}:test_labelled_boxes_go_into_unlabelled_crops_and_the_reverse",
    ),
    Mutation(
        "bpl-mix counts ignored voxels that it pastes",
        METHOD,
        "given = Marked(labeled.image, target, weight)",
        "given = Marked(labeled.image, target, torch.ones_like(weight))",
        f"{TESTS}:test_ignored_voxels_stay_ignored_wherever_they_are_pasted",
        {"loss": "dice"},
    ),
    Mutation(
        "bpl-mix counts what lies beyond a scan",
        METHOD,
        "counted(unlabeled, everywhere)",
        "everywhere",
        f"{TESTS}:test_what_lies_beyond_a_scan_moves_no_threshold",
    ),
    Mutation(
        "bpl-mix lets the M-step move the threshold",
        METHOD,
        "PseudoLabels(inferred.target.detach(), inferred.weight.detach())",
        "PseudoLabels(inferred.target, inferred.weight)",
        f"{TESTS}:test_m_step_moves_the_student_and_neither_threshold_nor_teacher",
        {"rule": "marginal"},
    ),
    Mutation(
        "bpl-mix drops the term of the threshold",
        METHOD,
        "            **inferred.terms,\n",
        "",
        "test_methods:test_every_weight_is_moved_by_some_term",
        {"name": "bpl-mix", **BOTH},
    ),
    Mutation(
        "bpl-mix detaches the loss of the mixed crops",
        METHOD,
        "self.loss(on_mixed.logits, mixed.target, mixed.weight)",
        "self.loss(on_mixed.logits.detach(), mixed.target, mixed.weight)",
        "test_methods:test_every_term_moves_some_weight",
        {"name": "bpl-mix", **BOTH},
    ),
    Mutation(
        "bpl-mix does not ramp alpha",
        METHOD,
        "alpha_at(self.settings, progress)",
        "self.settings.alpha",
        f"{TESTS}:test_weight_of_the_mixed_crops_rises_in_a_straight_line",
        {"progress": 0.1, "weight": 0.0},
    ),
    Mutation(
        "bpl-mix's teacher never follows",
        METHOD,
        "follow(self.teacher, self.network, self.settings.decay, steps)",
        "pass",
        "test_methods:test_teacher_follows_its_student_without_becoming_it",
        {"name": "bpl-mix", "dims": 2},
    ),
    Mutation(
        "bpl-mix's prior learns from the student",
        METHOD,
        "            on_labeled.logits.sigmoid(),\n            labeled.label,\n",
        "            self.network(labeled.image).logits.sigmoid(),\n            labeled.label,\n",
        f"{TESTS}:test_prior_of_labels_learns_from_the_teacher",
    ),
    Mutation(
        "bpl-mix shows its teacher labelled crops for nothing",
        METHOD,
        "if not self.latent.prior.reads_labeled:",
        "if False:",
        f"{TESTS}:test_teacher_is_shown_labelled_crops_only_where_the_prior_reads_them",
        {"prior": "fixed"},
    ),
    Mutation(
        "bpl-mix predicts by the student",
        METHOD,
        '[self.teacher if self.settings.predict_by == "teacher" else self.network]',
        "[self.network]",
        f"{TESTS}:test_prediction_is_made_by_the_teacher_unless_told_otherwise",
    ),
    Mutation(
        "bpl-mix holds the threshold against the student in prediction",
        METHOD,
        "output: NetOutput = self.teacher(image)",
        "output: NetOutput = self.network(image)",
        f"{TESTS}:test_threshold_in_prediction_is_held_against_the_teacher",
        {"rule": "binarize", "selects": False},
    ),
    Mutation(
        "boxes all begin in the corner",
        MIXING,
        "start = int(rng.integers(side - length + 1))",
        "start = 0",
        "test_mixing:test_every_voxel_is_in_some_box_and_none_is_in_all",
    ),
    Mutation(
        "a box loses what a thin side rounds away",
        MIXING,
        "for left, axis in zip(range(len(sides), 0, -1), np.argsort(sides), strict=True):",
        "for left, axis in zip(range(len(sides), 0, -1), np.argsort(sides)[::-1], strict=True):",
        "test_mixing:test_share_of_a_box_is_drawn_evenly_whatever_the_sides",
        {"sides": (64, 64, 2)},
    ),
]
