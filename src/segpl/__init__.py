"""Semi-supervised medical image segmentation: few labelled scans, many unlabelled ones."""

__version__ = "0.1.0"
