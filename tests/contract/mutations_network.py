"""Breaks of the coarser levels of the U-Net, of their loss, and of residual blocks."""

from __future__ import annotations

from mutations import Mutation

NETWORK = [
    Mutation(
        "coarser levels answer in prediction too",
        "networks/unet.py",
        "if self.training and self.sides:",
        "if self.sides:",
        "test_deep:test_coarser_logits_are_computed_in_training_only",
        {"dims": 2},
    ),
    Mutation(
        "coarser levels come in the wrong order",
        "networks/unet.py",
        "decoded[-2::-1]",
        "decoded[:-1]",
        "test_deep:test_finer_levels_come_first_also_where_all_are_equally_wide",
    ),
    Mutation(
        "coarser levels answer from the features of the finest",
        "networks/unet.py",
        "decoded[-2::-1]",
        "decoded[-1:]",
        "test_deep:test_finer_levels_come_first_also_where_all_are_equally_wide",
    ),
    Mutation(
        "coarser grids count as much as the finest",
        "losses.py",
        "total + 0.5**level * loss(",
        "total + loss(",
        "test_level_numbers:test_three_grids_count_as_4_2_and_1_of_7",
    ),
    Mutation(
        "losses of the grids are summed, not averaged",
        "losses.py",
        "return total / (2 - 0.5 ** len(output.coarse))",
        "return total",
        "test_level_numbers:test_three_grids_count_as_4_2_and_1_of_7",
    ),
    Mutation(
        "labels of a coarse grid are those of other voxels",
        "losses.py",
        "slice(None, None, fine // coarse)",
        "slice(fine // coarse - 1, None, fine // coarse)",
        "test_level_numbers:test_each_grid_has_the_labels_of_every_second_and_every_fourth_voxel",
    ),
    Mutation(
        "ignored voxels of a coarse grid count",
        "losses.py",
        "for values in (target, weight))",
        "for values in (target, torch.ones_like(weight)))",
        "test_level_numbers:test_label_that_is_ignored_everywhere_costs_nothing_on_any_grid",
    ),
    Mutation(
        "coarser logits of the whole batch go to both halves",
        "types.py",
        "tuple(logits[which] for logits in self.coarse)",
        "self.coarse",
        "test_deep:test_part_of_the_images_keeps_its_own_coarser_logits",
    ),
    Mutation(
        "segpl gives no labels to coarser levels",
        "methods/segpl.py",
        "labeled_loss(on_labeled, batch.labeled.label, self.loss)",
        "labeled_loss(replace(on_labeled, coarse=()), batch.labeled.label, self.loss)",
        "test_deep_supervision:test_supervised_term_moves_the_layer_of_every_coarser_level",
        {"name": "segpl", "dims": 2},
    ),
    Mutation(
        "residual block forgets its input",
        "networks/unet.py",
        "self.block(features) + self.shortcut(features)",
        "self.block(features)",
        "test_residual:test_input_passes_a_block_whose_convolutions_are_zero",
        {"dims": 2, "norm": "instance"},
    ),
    Mutation(
        "residual block adds its input after the last rectifier",
        "networks/unet.py",
        "self.rectify(self.block(features) + self.shortcut(features))",
        "self.rectify(self.block(features)) + self.shortcut(features)",
        "test_residual:test_both_ways_through_a_block_are_added_before_the_last_rectifier",
        {"dims": 2},
    ),
]
