"""Breaks of `fixmatch` and its views."""

from __future__ import annotations

from mutations import BOTH, Mutation

FIXMATCH = "methods/fixmatch.py"
STRONG = "methods/strong_view.py"
TERM = "Term((kept * torch.stack(losses)).mean(), alpha)"

VIEWS = [
    Mutation(
        "fixmatch keeps every voxel",
        FIXMATCH,
        ">= self.settings.confidence",
        ">= 0.0",
        "test_fixmatch:test_pseudo_term_is_the_cross_entropy_of_certain_voxels_divided_by_all",
    ),
    Mutation(
        "fixmatch divides by the certain voxels alone",
        FIXMATCH,
        TERM,
        "Term(torch.stack(losses).mean(), alpha)",
        "test_fixmatch:test_pseudo_term_is_the_cross_entropy_of_certain_voxels_divided_by_all",
    ),
    Mutation(
        "fixmatch detaches the pseudo loss",
        FIXMATCH,
        TERM,
        "Term((kept * torch.stack(losses)).mean().detach(), alpha)",
        "test_methods:test_every_term_moves_some_weight",
        {"name": "fixmatch", **BOTH},
    ),
    Mutation(
        "fixmatch does not ramp alpha",
        FIXMATCH,
        TERM,
        "Term((kept * torch.stack(losses)).mean(), self.settings.alpha)",
        "test_fixmatch:test_weight_of_the_unlabeled_images_rises_in_a_straight_line",
        {"progress": 0.0, "weight": 0.0},
    ),
    Mutation(
        "fixmatch labels the image without noise",
        FIXMATCH,
        "self.label(add_noise(unlabeled.image, self.settings.noise, batch.generator))",
        "self.label(unlabeled.image)",
        "test_fixmatch:test_weak_view_is_the_image_with_noise",
    ),
    Mutation(
        "fixmatch learns from the plain image",
        FIXMATCH,
        "forward_together(self.network, batch.labeled, Unlabeled(image))",
        "forward_together(self.network, batch.labeled, unlabeled)",
        "test_fixmatch:test_labels_are_those_of_the_weak_view",
    ),
    Mutation(
        "fixmatch leaves the labels where they were",
        STRONG,
        "strong, known = strong_view(",
        "strong, _ = strong_view(",
        "test_fixmatch:test_labels_move_with_the_strong_view",
    ),
    Mutation(
        "fixmatch labels the weak view in training mode",
        FIXMATCH,
        "as_in_prediction(self.network, weak).sigmoid()",
        "self.network(weak).logits.sigmoid()",
        "test_fixmatch:test_weak_view_is_labeled_in_evaluation_mode_without_a_gradient",
    ),
    Mutation(
        "fixmatch counts what lies beyond a scan",
        STRONG,
        "pseudo.weight * inside, inside], 1)",
        "pseudo.weight, inside], 1)",
        "test_fixmatch:test_filling_around_a_scan_never_counts_and_stays_where_it_is",
    ),
    Mutation(
        "fixmatch counts what a motion brings in",
        FIXMATCH,
        "/ shown.sum().clamp(min=1)",
        "/ torch.ones_like(shown).sum().clamp(min=1)",
        "test_fixmatch:test_what_a_motion_brings_in_from_beyond_the_crop_does_not_count",
    ),
    Mutation(
        "rotation by matrix of a cube on unequal sides",
        "views/geometry.py",
        " * sides[None, :] / sides[:, None]",
        "",
        "test_view_geometry:test_rotation_by_30_degrees_is_one_in_voxels_on_a_patch_of_unequal_sides",
    ),
]
