"""DICOM: series as images, segmentations and contours as labels.

Needs the extra `dicom`, except to recognize a DICOM file.
"""
