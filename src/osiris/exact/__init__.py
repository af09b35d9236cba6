"""What is learned by sums over images: no gradient, no order, nothing forgotten."""
