"""Ways to break residual blocks."""

from __future__ import annotations

from mutations import Mutation

MUTATIONS = [
    Mutation(
        "residual block drops its input",
        "networks/unet.py",
        "self.block(features) + self.shortcut(features)",
        "self.block(features)",
        "test_residual:test_input_passes_a_block_whose_convolutions_are_zero",
        {"dims": 2},
    ),
    Mutation(
        "residual block adds its input after the last activation",
        "networks/unet.py",
        "self.activation(self.block(features) + self.shortcut(features))",
        "self.activation(self.block(features)) + self.shortcut(features)",
        "test_residual:test_shortcut_is_added_before_the_last_activation",
        {"dims": 2},
    ),
]
