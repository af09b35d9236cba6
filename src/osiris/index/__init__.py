"""The index of a learner's state: vectors of image files, by which they are found again, also after the encoder has
learned more."""
