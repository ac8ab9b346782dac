"""Breaks of `cct`."""

from __future__ import annotations

from mutations import BOTH, Mutation

CCT = [
    Mutation(
        "cct lets gradients reach the main decoder's target",
        "methods/cct.py",
        "target = output.logits.detach().sigmoid()",
        "target = output.logits.sigmoid()",
        "test_cct:test_target_sends_no_gradient_to_the_main_decoder",
    ),
    Mutation(
        "cct gives all auxiliary decoders the same weights",
        "methods/cct.py",
        "nn.ModuleList(Branch(self.network) for _ in self.perturbations)",
        "nn.ModuleList([Branch(self.network)] * len(self.perturbations))",
        "test_cct:test_auxiliary_decoders_share_no_weight_and_begin_differently",
        {"dims": 2},
    ),
    Mutation(
        "cct shows the features without perturbation",
        "methods/cct.py",
        "branch(perturb(trunk, seen, generator), pseudo",
        "branch(trunk, pseudo",
        "test_cct:test_each_decoder_sees_the_view_that_it_is_named_for",
    ),
    Mutation(
        "cct cuts the auxiliary decoders off the trunk",
        "methods/cct.py",
        "self.disagreement(on_unlabeled.trunk, pseudo",
        "self.disagreement(on_unlabeled.trunk.detach(), pseudo",
        "test_cct:test_each_kind_of_decoder_alone_moves_the_shared_trunk",
        {"dims": 2},
    ),
    Mutation(
        "cct perturbs the labeled images",
        "methods/cct.py",
        "self.disagreement(on_unlabeled.trunk, pseudo",
        "self.disagreement(on_labeled.trunk, pseudo",
        "test_methods:test_other_terms_see_unlabeled_images_and_labeled_ones_only_where_declared",
        {"name": "cct", **BOTH},
    ),
    Mutation(
        "cct sees objects beyond the scan",
        "methods/cct.py",
        "seen = pseudo.target * pseudo.weight",
        "seen = pseudo.target",
        "test_cct:test_what_lies_beyond_the_scan_is_no_object",
    ),
    Mutation(
        "cct has no ramp",
        "methods/cct.py",
        "* sigmoid_ramp(progress, end=self.settings.ramp_end)",
        "",
        "test_cct:test_weight_of_the_auxiliary_decoders_rises_to_alpha",
        {"progress": 0.0, "share": 0.006737947},
    ),
    Mutation(
        "cct adds up its decoders",
        "methods/cct.py",
        "torch.stack(errors).mean()",
        "torch.stack(errors).sum()",
        "test_cct:test_pseudo_term_is_the_mean_squared_error_of_the_decoders_by_hand",
    ),
    Mutation(
        "cct takes the context for the objects",
        "views/features.py",
        "masked_fill(objects_in(probability, trunk), 0)",
        "masked_fill(~objects_in(probability, trunk), 0)",
        "test_features:test_objects_are_taken_and_their_context_is_left",
        {"dims": 2},
    ),
    Mutation(
        "cct cuts out beside the objects",
        "views/features.py",
        "start = first + (drawn",
        "start = (drawn",
        "test_features:test_cutout_of_an_image_lies_in_its_own_objects",
    ),
]
