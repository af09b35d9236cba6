"""What is learned by sums: no gradient, no order, nothing forgotten. Everything here is a function of sums over images."""
