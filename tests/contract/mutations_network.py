"""Ways to break residual blocks."""

from __future__ import annotations

from mutations import Mutation

MUTATIONS = [
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
